# make demo and make test are the two commands that users run; both set up what they need in this checkout.
PYTHON ?= python3
BIN := .venv/bin
WANTED := $(or $(ASKED),$(MAKECMDGOALS),setup)
# Whatever is more than running Penstock needs what its tests need.
EXTRA := $(if $(filter-out setup demo clean,$(WANTED)),test)
INSTALLED := .venv/.installed$(EXTRA:%=-%)
PAGE := penstock/serve/page/index.html
PAGE_SOURCES := $(shell find dashboard client/src -type f -not -path '*/node_modules/*' 2>/dev/null)
CLIENT := client/node_modules/.installed
# Tests start hundreds of Pythons: each would compile all of Penstock where the environment forbids it to keep that.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test lint bench clean
.PHONY: chaos chaos-producer chaos-counting chaos-js-readers chaos-readers chaos-royalties chaos-slow chaos-views chaos-webhooks

setup: $(INSTALLED) .venv/.compiled .venv/.warm $(PAGE)

# Compiled when first imported, which `.warm` does: of all that is installed, a quarter ever is.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 $(WANTED)")'
	@node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null || \
		{ echo "Node 20 or newer, with npm, is needed to build the page"; exit 1; }
	@echo "installing Spark and what else $(if $(EXTRA),the tests need,Penstock needs) into .venv, once: 900 MB, some minutes"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.$(EXTRA:%=[%])'
	@touch .venv/.installed $@

.PHONY: testing
testing: setup

# Three processes import the package at every start; Python may have been told not to keep what it compiles.
.venv/.compiled: $(shell find penstock examples -name '*.py') | $(INSTALLED)
	@$(BIN)/python -m compileall -q penstock examples
	@touch $@

# Lets later starts of Spark take less time; without it, or without Java, everything still works.
.venv/.warm: constraints.txt penstock/run/warmup.py $(wildcard penstock/flows/engine/*.py penstock/flows/engine/java/*.java) | $(INSTALLED)
	@echo "warming Spark up, once"
	@$(BIN)/python -m penstock.run.warmup >.venv/warm.log 2>&1 || echo "no warm start: see .venv/warm.log"
	@touch $@

$(PAGE): $(PAGE_SOURCES)
	@echo "building the page"
	@cd dashboard && npm ci --silent --no-fund --no-audit && npm run --silent build -- --logLevel warn
	@touch $@

# What pip installs where there is no Node and no make: the page and the demo's example are in both archives.
.PHONY: dist
dist: $(INSTALLED) $(PAGE)
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >.venv/dist.log 2>&1 || { cat .venv/dist.log; exit 1; }
	@ls dist/*

$(CLIENT): client/package.json client/package-lock.json
	cd client && npm ci --silent --no-fund --no-audit
	touch $@

demo: setup
	@$(if $(EXAMPLE),$(BIN)/python examples/demo.py $(EXAMPLE),$(BIN)/penstock demo)

lint: $(INSTALLED) $(PAGE) $(CLIENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd dashboard && npm run --silent check
	cd client && npm run --silent check

# Tests run in groups, several at once, each in one process. A group starts when what it needs is there, and shows what
# it has found when it is done. There is no second try: a test that a busy machine can fail is mended or removed.
GROUPS := kills flows e2e chaos logs serve views pulls collect cli others
# These wait for Spark, browsers and what was killed: they start first and go first, the others compute meanwhile.
LONG := kills flows e2e chaos
kills := tests/chaos/test_kills.py
flows := tests/flows
e2e := tests/e2e
chaos := tests/chaos --ignore=$(kills)
serve := tests/unit/serve
views := tests/unit/views tests/unit/rights
pulls := $(wildcard tests/unit/collect/test_pull*.py tests/unit/collect/test_kafka*.py)
collect := tests/unit/collect $(pulls:%=--ignore=%)
cli := tests/unit/cli tests/unit/run tests/unit/client
logs := tests/contract
others := tests $(addprefix --ignore=,tests/wheel tests/cluster $(logs) $(flows) $(e2e) tests/chaos tests/unit/collect $(serve) $(views) $(cli))
PYTEST := $(BIN)/pytest --quiet --color=$(if $(MAKE_TERMOUT),yes,auto) -p no:cacheprovider

test:
	@echo "setting up what the tests need, once, then running them in $(words $(GROUPS)) groups: each is shown when it is done"
	@$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs 4 ASKED=test test-page $(GROUPS:%=test-%) lint

.PHONY: test-page $(GROUPS:%=test-%)
$(GROUPS:%=test-%): test-%: $(INSTALLED) .venv/.compiled $(PAGE) $(CLIENT)
	@echo "tests: $*"
	@$(if $(filter $(LONG),$*),,nice -n 3) $(PYTEST) -m "not long" $($*)
$(LONG:%=test-%): .venv/.warm
test-pulls test-collect test-cli test-others: | .venv/.warm  # behind those
test-e2e test-others: chromium
test-chaos test-logs test-others: postgres
test-pulls test-logs test-flows: kafka

# They need no Python, and so run while Spark is installed.
test-page: $(PAGE) $(CLIENT) chromium
	cd dashboard && npm test --silent
	cd client && npm test --silent && npm run --silent size

# What takes too long for every run: tests with the mark `long`, such as the examples, each played whole.
.PHONY: test-long
test-long: $(INSTALLED) .venv/.compiled .venv/.warm $(PAGE) $(CLIENT) chromium postgres kafka
	@$(PYTEST) -m long tests --ignore=tests/wheel

# Flows, kills and the door once more on the ways of Spark and aiohttp themselves: docs/reference/plain.md.
PLAIN := flows kills collect
.PHONY: test-plain $(PLAIN:%=plain-%)
test-plain:
	@$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs 3 ASKED=test $(PLAIN:%=plain-%)

$(PLAIN:%=plain-%): plain-%: $(INSTALLED) .venv/.compiled
	@echo "plain tests: $*"
	@PENSTOCK_PLAIN=1 $(PYTEST) -m "not long" $($*)

# The wheel in a fresh venv, without Node and make: needs `make dist` alone, and takes a minute or two.
.PHONY: test-wheel
test-wheel: dist
	$(PYTEST) tests/wheel

# Kafka, a Spark master and a worker as processes on loopback: two minutes, and 4 GB.
.PHONY: test-cluster
test-cluster: testing kafka
	$(PYTEST) tests/cluster

# Three brokers, a Spark master and two workers, an edge, flows, the Meetup app and its feed: make cluster RATE=50 PORT=8080
.PHONY: cluster cluster-stop
cluster: testing kafka
	@$(BIN)/python -m tests.loopback_cluster start --port $(or $(PORT),8080) --rate $(or $(RATE),50)

cluster-stop: testing
	@$(BIN)/python -m tests.loopback_cluster stop

# Executor, worker, driver and brokers of that cluster killed under load: make chaos-cluster
.PHONY: chaos-cluster
chaos-cluster: testing kafka
	$(BIN)/python -m tests.chaos.cluster_kills

# The browser and the proxy of the tests. Root on Debian installs it; anybody else is told what to install.
.PHONY: chromium
chromium:
	@sh tests/e2e/chromium.sh
	@sh tests/e2e/nginx.sh || true  # its tests are skipped then, and say so

# The database of the tests, in the same way; without one its tests are skipped, and say so.
.PHONY: postgres
postgres: | chromium  # one apt-get at a time
	@sh tests/postgres.sh

# Requests that schemathesis makes from the OpenAPI document, in an environment of its own: make fuzz-openapi EXAMPLES=200 SEED=1
.PHONY: fuzz-openapi
fuzz-openapi: .venv-fuzz/.installed
	.venv-fuzz/bin/python -m tests.chaos.fuzz_described --examples $(or $(EXAMPLES),50) --seed $(or $(SEED),1)

.venv-fuzz/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	touch $@

# The jars of a Kafka broker, once for this user; without them its tests are skipped, and say so.
.PHONY: kafka
kafka: $(INSTALLED)
	@$(BIN)/python -m tests.kafka_broker

# Kills at random moments: make chaos KILLS=100 SEED=1; with LOG=kafka edge and flows on machines of their own, and the
# broker is killed and stopped too.
KILLS ?= 100
SEED ?= 1
chaos: testing $(if $(filter kafka,$(LOG)),kafka)
	$(BIN)/python -m tests.chaos.$(if $(filter kafka,$(LOG)),kafka_kills,harness) --kills $(KILLS) --seed $(SEED)

# The same for views over views, with their held rows damaged meanwhile: make chaos-views KILLS=20 SEED=1
chaos-views: testing
	$(BIN)/python -m tests.chaos.view_kills --kills $(KILLS) --seed $(SEED)

# The same for a producer, an edge and the network between them: make chaos-producer ROUNDS=50 SEED=1
ROUNDS ?= 50
chaos-producer: testing $(CLIENT)
	$(BIN)/python -m tests.chaos.producer_harness --rounds $(ROUNDS) --seed $(SEED)
	cd client && npm run --silent build
	$(BIN)/python -m tests.chaos.producer_harness --rounds $(ROUNDS) --seed $(SEED) --node

# Thousands of readers, some of them stopped
chaos-slow: testing
	$(BIN)/python -m tests.chaos.slow_readers --clients 2000

# The copies of the JavaScript client, compared batch by batch: make chaos-js-readers ROUNDS=200 SEED=1
chaos-js-readers: testing $(CLIENT)
	$(BIN)/python -m tests.chaos.js_readers --rounds $(ROUNDS) --seed $(SEED)

# Every event counted, by every way in, while the edge is killed: make chaos-counting KILLS=50 SEED=1
chaos-counting: testing
	$(BIN)/python -m tests.chaos.counting --kills $(KILLS) --seed $(SEED)

# An edge that is killed right after endpoints of webhooks said 2xx: make chaos-webhooks KILLS=50 SEED=1
chaos-webhooks: testing
	$(BIN)/python -m tests.chaos.webhook_harness --kills $(KILLS) --seed $(SEED)

# Payer and payment service killed, on each store: make chaos-royalties KILLS=100 SEED=1
chaos-royalties: testing postgres
	$(BIN)/python -m tests.chaos.royalties --kills $(KILLS) --seed $(SEED)
	$(BIN)/python -m tests.chaos.royalties --kills $(KILLS) --seed $(SEED) --postgres

# Readers through cuts, kills, rebuilds and changes of transport: make chaos-readers READER_ROUNDS=1000 SEED=1
READER_ROUNDS ?= 1000
chaos-readers: testing
	$(BIN)/python -m tests.chaos.readers --rounds $(READER_ROUNDS) --seed $(SEED)
	$(BIN)/python -m tests.chaos.model --rounds $(READER_ROUNDS) --seed $(SEED)

# Every shape of query that tests/flows/shapes.py has, in many seeded orders of changes: make shapes SEEDS=50
SEEDS ?= 5
.PHONY: shapes
shapes: testing
	SHAPE_SEEDS=$(SEEDS) $(PYTEST) tests/flows/test_shapes.py

# Windows of generated streams against a reference in plain Python: make windows SEEDS=200
.PHONY: windows
windows: testing
	WINDOW_SEEDS=$(if $(filter file,$(origin SEEDS)),200,$(SEEDS)) $(PYTEST) tests/flows/test_windows.py

# Patterns against a reference that tries all ways to give events to steps: make patterns SEEDS=2000
.PHONY: patterns
patterns: testing
	PATTERN_SEEDS=$(if $(filter file,$(origin SEEDS)),2000,$(SEEDS)) $(PYTEST) tests/unit/flows/test_patterns.py

# The tables of routes and parameters in docs/reference/http.md
.PHONY: routes
routes: $(INSTALLED)
	$(BIN)/python -m tests.docs.route_tables

# What every file is for, in its own words: make tour, make tour IN=flows
.PHONY: tour
tour: $(INSTALLED)
	@$(BIN)/python -m tests.docs.tour $(IN)

bench: testing chromium
	$(BIN)/python -m bench

clean:
	rm -rf .venv dashboard/node_modules client/node_modules client/dist penstock/serve/page build dist *.egg-info
