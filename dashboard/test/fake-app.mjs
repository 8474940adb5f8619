// The made-up app behind the fake server: four views of four shapes, one of them stopped, and a changelog to resume from.
const TOPICS = ["Python", "Hiking", "Data Science", "Board Games", "Startups", "Photography", "Yoga", "Machine Learning", "Live Music", "Spanish", "Cycling", "Book Club", "Meditation", "Web Design", "Dancing", "Salsa", "Running", "Philosophy"];
const COUNTRIES = ["us", "gb", "de", "fr", "in", "br", "jp", "es", "ca", "nl", "it", "au", "mx"];
const WINDOW_MS = 10_000;
const WINDOW = "struct<start:timestamp,end:timestamp>";
const TROUBLE = {
  code: "flow_failed",
  message: "The flow \"revenue\" failed at meetup.py line 61: the column \"prise\" does not exist.",
  detail: "meetup.py:61  .agg(F.sum(\"prise\").alias(\"total\"))\n[UNRESOLVED_COLUMN.WITH_SUGGESTION] Did you mean one of: price, rsvp_id, _time?",
  hint: "Correct the column's name and save; `penstock check meetup.py` tells whether it is right.",
};
const RUNNING = { state: "running", error: null };

const column = (name, type) => ({ name, type });

export const VIEWS = [
  { view: "trending", doc: "Topics with the most RSVPs, ten seconds at a time.", key: ["window", "topic"], columns: [column("window", WINDOW), column("topic", "string"), column("rsvps", "bigint")], order_by: ["-window", "-rsvps"], limit: 10, keep: "1 hour", class: "exact", how: "regrouped", flow: RUNNING },
  { view: "countries", doc: "Where people say yes.", key: ["country"], columns: [column("country", "string"), column("yes", "bigint"), column("share", "double"), column("last_seen", "timestamp")], order_by: ["-yes"], limit: null, keep: null, class: "tolerance", flow: RUNNING },
  { view: "pulse", doc: "All RSVPs, ten seconds at a time.", key: ["window"], columns: [column("window", WINDOW), column("rsvps", "bigint"), column("guests", "decimal(10,2)")], order_by: null, limit: null, keep: "1 hour", class: "exact", flow: RUNNING },
  { view: "revenue", doc: "What the paid events bring in.", key: ["currency"], columns: [column("currency", "string"), column("total", "decimal(10,2)"), column("tags", "array<string>")], order_by: ["-total"], limit: 5, keep: null, class: "unverifiable", flow: { state: "stopped", error: TROUBLE } },
];

const GRAPH = {
  app: "meetup",
  nodes: [
    { name: "ws://stream.meetup.com", kind: "source", doc: "ws://stream.meetup.com/2/rsvps", state: "running" },
    { name: "payments-api", kind: "source", doc: null, state: "running" },
    { name: "rsvps", kind: "stream", doc: null, state: null },
    { name: "payments", kind: "stream", doc: null, state: null },
    { name: "yes", kind: "flow", doc: "Only those who come.", state: "running" },
    ...VIEWS.map((view) => ({ name: view.view, kind: "view", doc: view.doc, state: view.flow.state })),
  ],
  edges: [["ws://stream.meetup.com", "rsvps"], ["payments-api", "payments"], ["rsvps", "yes"], ["yes", "trending"], ["yes", "countries"], ["rsvps", "pulse"], ["payments", "revenue"]].map(([from, to]) => ({ from, to })),
};

export class FakeApp {
  constructor({ seed = 7, views = VIEWS } = {}) {
    this.seed = seed;
    this.views = views;
    this.rows = new Map(views.map((view) => [view.view, new Map()]));
    this.changes = new Map(views.map((view) => [view.view, []]));
    this.position = 0;
    this.taken = { accepted: 184_000, duplicates: 412, dead: 37, late: 126 };
    this.began = Date.now() - 5_840_000;
    this.subscriptions = new Map();
    this.asked = [];
    for (let at = Date.now() - 60 * WINDOW_MS; at < Date.now(); at += 400) this.happen(at, 12);
    for (const [currency, total] of [["EUR", "18230.50"], ["USD", "15110.00"], ["GBP", "4020.75"]]) this.put("revenue", { currency, total, tags: ["paid", "card"] });
    for (const list of this.changes.values()) list.length = 0;
  }

  random() {
    this.seed = (this.seed * 1664525 + 1013904223) % 4294967296;
    return this.seed / 4294967296;
  }

  /** One batch: new events, then one message per subscription that saw something of it. */
  step(events = 10) {
    const accepted = new Date(Date.now() - 40 - this.random() * 160).toISOString();
    this.position += 1;
    this.happen(Date.now(), events);
    this.taken.accepted += events;
    if (this.random() < 0.1) this.taken.late += 1;
    for (const list of this.subscriptions.values()) for (const subscription of list.values()) this.tell(subscription, accepted);
    for (const list of this.changes.values()) list.length = 0;
  }

  happen(at, events) {
    const start = Math.floor(at / WINDOW_MS) * WINDOW_MS;
    const window = { start: iso(start), end: iso(start + WINDOW_MS) };
    for (let i = 0; i < events; i++) {
      const wave = Math.sin(at / 60_000) * 2;
      const topic = TOPICS[Math.min(TOPICS.length - 1, Math.floor(Math.abs(this.random() ** 2.2 * TOPICS.length + wave * this.random())))];
      const country = COUNTRIES[Math.floor(this.random() ** 2 * COUNTRIES.length)];
      this.raise("trending", { window, topic }, (row) => ({ rsvps: (row?.rsvps ?? 0) + 1 }));
      this.raise("countries", { country }, (row) => ({ yes: (row?.yes ?? 0) + 1, share: this.random(), last_seen: iso(at) }));
      this.raise("pulse", { window }, (row) => ({ rsvps: (row?.rsvps ?? 0) + 1, guests: ((row?.rsvps ?? 0) * 1.31).toFixed(2) }));
    }
  }

  raise(view, key, next) {
    const held = this.rows.get(view)?.get(JSON.stringify(key));
    this.put(view, { ...key, ...next(held) });
  }

  put(view, row) {
    const definition = this.views.find((item) => item.view === view);
    if (!definition) return;
    const key = JSON.stringify(Object.fromEntries(definition.key.map((name) => [name, row[name]])));
    this.rows.get(view).set(key, row);
    this.changes.get(view).push(key);
  }

  take(socket, message) {
    if (message.type === "ping") return socket.send(JSON.stringify({ ...message, type: "pong" }));
    this.asked.push(message);
    const list = this.subscriptions.get(socket) ?? new Map();
    this.subscriptions.set(socket, list);
    if (message.type === "unsubscribe") return list.delete(message.id);
    const view = this.views.find((item) => item.view === message.view);
    if (!view) return socket.send(JSON.stringify({ type: "error", id: message.id, error: { code: "unknown_view", message: `There is no view "${message.view}".`, detail: null, hint: null } }));
    const subscription = { ...message, socket, view, order_by: message.order_by ?? view.order_by ?? [], limit: message.limit === undefined ? view.limit : message.limit, sent: new Map() };
    list.set(message.id, subscription);
    const rows = this.select(subscription);
    subscription.sent = rows;
    const values = [...rows.values()];
    const half = Math.ceil(values.length / 2);
    const base = { type: "snapshot", id: message.id, view: view.view, position: String(this.position) };
    if (message.since !== null && message.since !== undefined) socket.send(JSON.stringify({ ...base, type: "changes", upserts: values, deletes: [] }));
    else if (values.length < 20) socket.send(JSON.stringify({ ...base, rows: values }));
    else [values.slice(0, half), values.slice(half)].forEach((rows, i) => socket.send(JSON.stringify({ ...base, rows, part: i + 1, parts: 2 })));
  }

  forget(socket) {
    this.subscriptions.delete(socket);
  }

  tell(subscription, accepted) {
    const now = this.select(subscription);
    const upserts = [...now].filter(([key, row]) => subscription.sent.get(key) !== row).map(([, row]) => row);
    const deletes = [...subscription.sent.keys()].filter((key) => !now.has(key)).map((key) => JSON.parse(key));
    subscription.sent = now;
    if (upserts.length + deletes.length === 0) return;
    const message = { type: "changes", id: subscription.id, view: subscription.view.view, position: String(this.position), upserts, deletes, accepted };
    subscription.socket.send(JSON.stringify(message));
  }

  select({ view, where, order_by, limit }) {
    const names = where ? [...where.matchAll(/'((?:[^']|'')*)'/g)].map((match) => match[1].replaceAll("''", "'")) : null;
    let rows = [...this.rows.get(view.view)];
    if (names) rows = rows.filter(([, row]) => names.includes(row.topic));
    rows.sort(([, a], [, b]) => {
      for (const term of order_by) {
        const name = term.replace(/^-/, "");
        const [x, y] = [sortable(a[name]), sortable(b[name])];
        if (x !== y) return (x < y ? -1 : 1) * (term.startsWith("-") ? -1 : 1);
      }
      return 0;
    });
    return new Map(limit === null || limit === undefined ? rows : rows.slice(0, limit));
  }

  document(path) {
    const views = this.views.map((view) => ({ ...view, rows: this.rows.get(view.view).size, position: String(this.position), frontier: String(this.position) }));
    const rate = 48 + Math.sin(Date.now() / 7_000) * 9 + this.random() * 4;
    const stream = (name, kind, totals, accepted) => ({ stream: name, kind, partitions: 1, key: null, time: null, totals, rates: { accepted }, position: "0" });
    const none = { duplicates: 0, dead: 0, late: 0 };
    const streams = [
      stream("rsvps", "stream", this.taken, rate),
      stream("payments", "stream", { ...none, accepted: 1_204 }, 0.4),
      stream("yes", "flow", { ...none, accepted: Math.round(this.taken.accepted * 0.7) }, rate * 0.7),
      stream("dead", "ledger", { ...none, accepted: this.taken.dead }, 0),
      stream("late", "ledger", { ...none, accepted: this.taken.late }, 0.1),
    ];
    const flows = ["yes", ...this.views.map((view) => view.view)].map((flow) => {
      const health = this.views.find((view) => view.view === flow)?.flow ?? RUNNING;
      const runs = health.state === "running";
      return { flow, ...health, batch_ms: 180 + (this.position % 40), rate: runs ? rate : 0, lag_events: runs ? Math.round(this.random() * 30) : 148 };
    });
    if (path === "/views") return { views };
    if (path === "/graph") return GRAPH;
    if (path === "/streams") return { streams };
    if (path !== "/status") return null;
    return { app: "meetup", version: "0.1.0", started: iso(this.began), uptime_s: (Date.now() - this.began) / 1000, processes: { edge: { state: "running", pid: 1, restarts: 0 }, flows: { state: "running", pid: 2, restarts: 1 } }, streams, views, flows, pulls: [{ stream: "countries", url: "file:///data/countries.csv", state: "disconnected", error: "'/data/countries.csv' cannot be read: No such file or directory" }], freshness: { p50_ms: 140, p99_ms: 390 } };
  }
}

function iso(ms) {
  return new Date(ms).toISOString();
}

function sortable(value) {
  return typeof value === "object" && value !== null ? value.start : typeof value === "string" && value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value;
}
