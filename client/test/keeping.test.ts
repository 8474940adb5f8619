// What a page knew when it was closed: bounded, ignored when damaged, never another person's, and safe with two tabs.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Client, type ClientOptions, connect, MemoryStore, type Row, type Store, WebStore } from "../src/reader/client.js";
import { ENTRIES_MOST, ENTRY_CHARACTERS } from "../src/reader/store.js";
import { Wire } from "./wire.js";

/** As a browser's: strings, in order, with room for so many characters. */
class Storage_ implements Storage {
  [name: string]: unknown;
  readonly held = new Map<string, string>();
  constructor(private readonly room = 5_000_000) {}
  get length(): number {
    return this.held.size;
  }
  clear(): void {
    this.held.clear();
  }
  getItem(key: string): string | null {
    return this.held.get(key) ?? null;
  }
  key(n: number): string | null {
    return [...this.held.keys()][n] ?? null;
  }
  removeItem(key: string): void {
    this.held.delete(key);
  }
  setItem(key: string, value: string): void {
    const others = [...this.held].filter(([name]) => name !== key).reduce((sum, [name, text]) => sum + name.length + text.length, 0);
    if (others + key.length + value.length > this.room) throw new DOMException("full", "QuotaExceededError");
    this.held.set(key, value);
  }
}

let wire: Wire;
let clients: Client[];
let rows: Row[];

beforeEach(async () => {
  wire = await Wire.open();
  rows = [{ topic: "a", n: 1 }];
  wire.answer = () => ({ views: [{ view: "topics", key: ["topic"] }] });
  wire.heard = (peer, said) => said.type === "subscribe" && said["since"] === null && peer.say({ type: "snapshot", id: said.id, position: "p1", rows });
  clients = [];
});

afterEach(async () => {
  for (const client of clients) client.close();
  await wire.close();
});

const until = (condition: () => unknown): Promise<void> => vi.waitFor(() => expect(condition()).toBeTruthy(), { timeout: 10_000, interval: 2 });

function open(options: ClientOptions): Client {
  const client = connect(wire.url, options);
  clients.push(client);
  return client;
}

/** A page that sees the rows and is closed. */
async function visit(options: ClientOptions, where?: string): Promise<void> {
  const client = open(options);
  await client.live("topics", where ? { where } : {}).ready;
  client.close();
  await new Promise((resolve) => setTimeout(resolve, 5));
}

async function sinceOfNext(options: ClientOptions): Promise<unknown> {
  const count = wire.peers.length;
  open(options).live("topics");
  await until(() => wire.peers.length > count && wire.last.asked());
  return wire.last.asked()?.["since"];
}

test("a reopened page begins with the rows that it knew, and asks only for what it missed", async () => {
  const store = new WebStore(new Storage_());
  await visit({ store });
  const port = wire.port;
  await wire.close();
  const again = connect(`http://127.0.0.1:${port}`, { store, backoffMostMs: 10 });
  clients.push(again);
  const reopened = again.live("topics");
  const told: (string | null)[] = [];
  reopened.subscribe((batch) => told.push(batch && batch.position));
  await until(() => reopened.size === 1);
  expect([reopened.position, reopened.get("a"), told[0]]).toEqual(["p1", { topic: "a", n: 1 }, "p1"]);
  expect(reopened.state).not.toBe("live");
  wire = await Wire.open(port);
  wire.heard = (peer, said) => said.type === "subscribe" && peer.say({ type: "changes", id: said.id, position: "p2", upserts: [{ topic: "b", n: 2 }], deletes: [] });
  await reopened.ready;
  await until(() => reopened.size === 2);
  expect(wire.last.asked()?.["since"]).toBe("p1");
});

test("when nothing was missed the page is live without a message that says so", async () => {
  const store = new MemoryStore();
  await visit({ store });
  const live = await open({ store }).live("topics").ready;
  expect([live.state, live.size, wire.last.asked()?.["since"]]).toEqual(["live", 1, "p1"]);
});

test("what is kept belongs to one server, one question and one person", async () => {
  const store = new MemoryStore();
  await visit({ store, key: "psk_ann" });
  expect(await sinceOfNext({ store, key: "psk_bob" })).toBe(null);
  expect(await sinceOfNext({ store, key: () => "psk_ann" })).toBe(null);
  expect(await sinceOfNext({ store, key: "psk_ann" })).toBe("p1");
  const client = open({ store, key: "psk_ann" });
  client.live("topics", { where: "n > 1" });
  await until(() => wire.last.asked()?.["where"]);
  expect(wire.last.asked()?.["since"]).toBe(null);
});

test("rows of the old question are never kept as the answer to the new one", async () => {
  const store = new MemoryStore();
  const client = open({ store });
  const live = await client.live("topics").ready;
  wire.heard = () => {};
  live.changeFilter({ where: "n > 5" });
  await until(() => wire.last.asked()?.["where"] === "n > 5");
  client.save();
  client.close();
  const next = open({ store });
  next.live("topics", { where: "n > 5" });
  await until(() => wire.peers.length === 2 && wire.last.asked());
  expect(wire.last.asked()?.["since"]).toBe(null);
  next.live("topics");
  await until(() => wire.last.said.length === 2);
  expect(wire.last.said[1]?.["since"]).toBe("p1");
});

test.each([false, true])("a question that is changed before it was asked is the one that is asked and kept (stored: %s)", async (stored) => {
  const store = new MemoryStore();
  if (stored) await visit({ store });
  const client = open({ store });
  const live = client.live("topics");
  live.changeFilter({ where: "n > 5" });
  rows = [{ topic: "b", n: 6 }];
  await live.ready;
  expect([wire.last.asked()?.["where"], wire.last.asked()?.["since"], [...live.keys()]]).toEqual(["n > 5", null, ["b"]]);
  client.close();
  const again = open({ store }).live("topics", { where: "n > 5" });
  await again.ready;
  expect([again.size, wire.last.asked()?.["since"]]).toEqual([1, "p1"]);
});

test("a key is never written down", async () => {
  const storage = new Storage_();
  await visit({ store: new WebStore(storage), key: "psk_secret_secret" });
  expect(storage.length).toBe(1);
  expect(JSON.stringify([...storage.held])).not.toContain("psk_secret");
});

test("an entry that was damaged anywhere is as if it were not there", async () => {
  const storage = new Storage_();
  const store = new WebStore(storage);
  await visit({ store });
  const [[name, whole]] = [...storage.held] as [[string, string]];
  const start = whole.indexOf(" ") + 1;
  for (let n = start; n < whole.length; n += 3) {
    for (const damaged of [whole.slice(0, n), whole.slice(0, n) + (whole[n] === "1" ? "2" : "1") + whole.slice(n + 1)]) {
      storage.held.set(name, damaged);
      const live = open({ store, world: { WebSocket: class { constructor() { throw new Error("no"); } } as never, fetch: () => Promise.reject(new Error("no")) } }).live("topics");
      await new Promise((resolve) => setTimeout(resolve, 0));
      await Promise.resolve();
      expect([damaged.slice(start), live.size]).toEqual([damaged.slice(start), 0]);
      live.close();
    }
  }
  storage.held.set(name, whole);
  expect(await sinceOfNext({ store })).toBe("p1");
});

test("two tabs that write the same entry leave one of the two, whole", async () => {
  const store = new MemoryStore();
  const [a, b] = await Promise.all([open({ store }).live("topics").ready, open({ store }).live("topics").ready]);
  const [first, second] = wire.peers;
  first!.say({ type: "changes", id: "s1", position: "p2", upserts: [{ topic: "b", n: 2 }], deletes: [] });
  await until(() => a.position === "p2" || b.position === "p2");
  a.save();
  b.save();
  const live = open({ store }).live("topics");
  await until(() => live.size > 0);
  expect([["p1", 1], ["p2", 2]]).toContainEqual([live.position, live.size]);
  void second;
});

test("what does not fit is not kept, and a place that was full before is freed", async () => {
  const storage = new Storage_();
  const store = new WebStore(storage);
  await visit({ store });
  rows = [{ topic: "a", n: "x".repeat(ENTRY_CHARACTERS) }];
  await visit({ store: new MemoryStore() });
  const live = open({ store }).live("topics");
  await live.ready;
  wire.last.say({ type: "reset", id: "s1", reason: "rebuilt" });
  wire.last.say({ type: "snapshot", id: "s1", position: "p5", rows });
  await until(() => live.position === "p5");
  live.save();
  await until(() => storage.length === 0);
});

test("entries are bounded in number and give way when there is no room, the oldest first", async () => {
  let now = 0;
  const storage = new Storage_(2000);
  storage.held.set("theirs", "kept");
  const store: Store = new WebStore(storage, () => ++now);
  for (let n = 0; n < ENTRIES_MOST + 5; n++) await store.set(`e${n}`, "text");
  expect(storage.length).toBe(ENTRIES_MOST + 1);
  expect(await store.get("e4")).toBe(null);
  expect(await store.get("e5")).toBe("text");
  await store.set("large", "x".repeat(1500));
  expect(await store.get("large")).toHaveLength(1500);
  expect(await store.get(`e${ENTRIES_MOST + 4}`)).toBe("text");
  expect(storage.getItem("theirs")).toBe("kept");
  await store.set("large", "x".repeat(3000));
  expect(await store.get("large")).toBe(null);
  const memory = new MemoryStore();
  for (let n = 0; n < ENTRIES_MOST + 5; n++) await memory.set(`e${n}`, "text");
  expect([await memory.get("e4"), await memory.get("e5")]).toEqual([null, "text"]);
});

test("a store that fails or hangs keeps no page empty", async () => {
  const broken: Store = { get: () => Promise.reject(new Error("broken")), set: () => Promise.reject(new Error("broken")), delete: () => Promise.reject(new Error("broken")) };
  await open({ store: broken }).live("topics").ready;
  const hanging: Store = { get: () => new Promise(() => {}), set: () => new Promise(() => {}), delete: () => new Promise(() => {}) };
  await open({ store: hanging }).live("topics").ready;
});
