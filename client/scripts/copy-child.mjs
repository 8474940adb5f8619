// A reader that is told over stdin what to do and says over stdout what it holds after every batch: for tests that compare it with the server.
//
// in:  {"do": "open", "url", "transports", "folder"}, {"do": "live", "id", "view", "question"}, {"do": "change", "id", "question"},
//      {"do": "stream", "id", "stream", "question"}, {"do": "close"}, {"do": "wake"}, {"do": "say"}
// out: {"id", "position", "snapshot", "reset", "rows"}, {"id", "position", "reset", "events"}, {"id", "error"}, {"said": {id: {state, position, size}}, "transport"}
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { connect } from "../dist/reader/client.js";

const FAST = { backoffMostMs: 200, openMs: 1500, silenceMs: 500, pongMs: 500 };
const say = (message) => writeSync(1, `${JSON.stringify(message)}\n`);

/** A store of files, so that a child that is killed leaves what it knew. */
class FolderStore {
  constructor(folder) {
    this.folder = folder;
    mkdirSync(folder, { recursive: true });
  }
  path(name) {
    return `${this.folder}/${createHash("sha256").update(name).digest("hex")}`;
  }
  async get(name) {
    try {
      return readFileSync(this.path(name), "utf8");
    } catch {
      return null;
    }
  }
  async set(name, text) {
    writeFileSync(`${this.path(name)}.new`, text);
    renameSync(`${this.path(name)}.new`, this.path(name));
  }
  async delete(name) {
    rmSync(this.path(name), { force: true });
  }
}

let client;
const held = new Map();

const acts = {
  open({ url, transports, folder }) {
    client = connect(url, { ...FAST, transports, ...(folder && { store: new FolderStore(folder) }) });
  },
  live({ id, view, question }) {
    const live = client.live(view, question);
    held.set(id, live);
    live.subscribe((batch) => batch && say({ id, position: live.position, snapshot: batch.snapshot, reset: batch.reset, rows: [...live.values()] }));
    live.ready.catch((error) => say({ id, error: error.code }));
  },
  stream({ id, stream, question }) {
    const watch = client.stream(stream, { ...question, onBatch: ({ position, reset, events }) => say({ id, position, reset, events }) });
    held.set(id, watch);
    watch.done.catch((error) => say({ id, error: error.code }));
  },
  change({ id, question }) {
    held.get(id).changeFilter(question);
    say({ id, changed: question });
  },
  say() {
    const said = Object.fromEntries([...held].map(([id, each]) => [id, { state: each.state, position: each.position, size: each.size ?? null }]));
    say({ said, transport: client.transport, state: client.state });
  },
  close() {
    client.close();
    held.clear();
    say({ closed: true });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  acts[asked.do](asked);
}
client?.close();
process.exit(); // a socket whose network is gone would keep Node alive: its closing has no end
