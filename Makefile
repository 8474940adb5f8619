# make demo and make test are the two commands that users run; both set up what they need in this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PAGE := penstock/serve/page/index.html

.PHONY: setup demo test bench clean

setup: $(VENV)/.installed $(PAGE)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
