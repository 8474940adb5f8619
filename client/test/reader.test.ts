// Watching and live views over one WebSocket, against a server that does what only a bad day brings.
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type Batch, type Client, type ClientOptions, connect, MemoryStore, type Row, type State, type Store } from "../src/reader/client.js";
import { type Peer, refuse, type Said, Wire } from "./wire.js";

let wire: Wire;
let clients: Client[];

beforeEach(async () => {
  wire = await Wire.open();
  wire.answer = ({ path }) => (path === "/views" ? { views: [{ view: "topics", key: ["topic"] }, { view: "pairs", key: ["a", "b"] }] } : {});
  clients = [];
});

afterEach(async () => {
  for (const client of clients) client.close();
  await wire.close();
});

function open(options: ClientOptions = {}): Client {
  const client = connect(wire.url, { backoffMostMs: 20, ...options });
  clients.push(client);
  return client;
}

const until = (condition: () => unknown, timeout = 10_000): Promise<void> => vi.waitFor(() => expect(condition()).toBeTruthy(), { timeout, interval: 2 });
const row = (topic: string, n: number): Row => ({ topic, n });

async function asked(name?: string, peers = 1): Promise<Said & { peer: Peer }> {
  await until(() => wire.peers.length >= peers && wire.last.asked(name));
  return { ...wire.last.asked(name)!, peer: wire.last };
}

/** Answers every subscription with the same rows. */
function serve(rows: Row[], position = "p1"): void {
  wire.heard = (peer, said) => said.type === "subscribe" && said["since"] === null && peer.say({ type: "snapshot", id: said.id, position, rows });
}

describe("what is asked for", () => {
  test("goes out in the words of the contract", async () => {
    open().watch("topics", { where: "n > :least", params: { least: 3 }, select: ["topic", "n"], orderBy: "-n", limit: null, name: "mine", pace: 2 });
    const { peer, ...said } = await asked();
    const words = { where: "n > :least", params: { least: 3 }, select: ["topic", "n"], order_by: "-n", limit: null, name: "mine" };
    expect(said).toEqual({ type: "subscribe", id: "s1", view: "topics", ...words, since: null });
    await until(() => peer.said.some(({ type, id, per_s }) => type === "pace" && id === "s1" && per_s === 2));
  });

  test("is one connection for all of a client's subscriptions, with its key as a subprotocol", async () => {
    const client = open({ key: "psk_1" });
    client.watch("topics");
    client.live("pairs");
    client.stream("rsvps");
    client.watch({ channel: "jazz" });
    await until(() => wire.peers[0]?.said.length === 4);
    expect(wire.peers).toHaveLength(1);
    expect(wire.last.protocols).toBe("penstock, bearer.psk_1");
    expect(wire.last.said.map(({ view, stream, channel }) => view ?? stream ?? channel).sort()).toEqual(["jazz", "pairs", "rsvps", "topics"]);
  });

  test("can be read once, with the server's reason when it refuses", async () => {
    wire.answer = (request) => (request.query["where"] === "(" ? refuse(request, 400, "bad_query") : { view: "topics", position: "p", frontier: {}, rows: [row("a", 1)] });
    const client = open({ key: () => Promise.resolve("psk_2") });
    expect((await client.get("topics", { key: { topic: "a" }, after: "ack", atLeast: "p0", wait: 2, limit: null })).rows).toEqual([row("a", 1)]);
    const [request] = wire.requests;
    expect([request?.path, request?.key]).toEqual(["/views/topics", "Bearer psk_2"]);
    expect(request?.query).toEqual({ key: '{"topic":"a"}', after: "ack", at_least: "p0", wait: "2", limit: "null" });
    await expect(client.get("topics", { where: "(" })).rejects.toMatchObject({ name: "ClientError", code: "bad_query" });
  });
});

describe("watch", () => {
  test("gives a snapshot, then every batch, to a loop", async () => {
    serve([row("a", 1)]);
    const seen: Batch[] = [];
    for await (const batch of open().watch("topics")) {
      seen.push(batch);
      if (seen.length === 1) wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [row("b", 2)], deletes: [{ topic: "a" }], accepted: "2026-01-01T00:00:00.000Z" });
      else break;
    }
    expect(seen.map(({ position, snapshot }) => [position, snapshot])).toEqual([["p1", true], ["p2", false]]);
    expect(seen[1]).toMatchObject({ name: "topics", upserts: [row("b", 2)], deletes: [{ topic: "a" }], reset: null });
    await until(() => wire.last.said.some(({ type }) => type === "unsubscribe"));
  });

  test("waits for the callback, and counts a batch when that is done", async () => {
    serve([]);
    let free = (): void => {};
    const seen: string[] = [];
    const watch = open().watch("topics", {
      onBatch: async ({ position }) => {
        seen.push(position);
        if (position === "p1") await new Promise<void>((resolve) => (free = resolve));
      },
    });
    await until(() => seen.length === 1);
    wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [], deletes: [] });
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect([seen, watch.position]).toEqual([["p1"], null]);
    free();
    await until(() => watch.position === "p2");
  });

  test("a callback that throws ends it, and says so", async () => {
    serve([]);
    const watch = open().watch("topics", { onBatch: () => Promise.reject(new Error("no room")) });
    await expect(watch.done).rejects.toThrow("no room");
    expect(watch.position).toBe(null);
    await until(() => wire.last.said.some(({ type }) => type === "unsubscribe"));
  });

  test("resumes after a cut from the last whole batch; parts of a broken snapshot are forgotten", async () => {
    const seen: Batch[] = [];
    open().watch("topics", { onBatch: (batch) => void seen.push(batch) });
    const { peer } = await asked();
    peer.say({ type: "snapshot", id: "s1", position: "p1", rows: [row("a", 1)], part: 1, parts: 2 });
    peer.cut();
    const second = await asked("topics", 2);
    expect(second["since"]).toBe(null);
    second.peer.say({ type: "snapshot", id: "s1", position: "p2", rows: [row("a", 2)], part: 1, parts: 2 });
    second.peer.say({ type: "snapshot", id: "s1", position: "p2", rows: [row("b", 2)], part: 2, parts: 2 });
    second.peer.say({ type: "position", id: "s1", position: "p3" });
    await until(() => seen.length === 1);
    expect(seen[0]?.upserts).toEqual([row("a", 2), row("b", 2)]);
    await new Promise((resolve) => setTimeout(resolve, 20));
    second.peer.cut();
    const third = await asked("topics", 3);
    expect(third["since"]).toBe("p3");
    third.peer.say({ type: "changes", id: "s1", position: "p4", upserts: [], deletes: [] });
    third.peer.say({ type: "changes", id: "s1", position: "p4", upserts: [], deletes: [] });
    await until(() => seen.length === 2);
  });

  test("a reset is told with the snapshot that follows, and its old position is never used again", async () => {
    const seen: Batch[] = [];
    open().watch("topics", { since: "p9", onBatch: (batch) => void seen.push(batch) });
    const first = await asked();
    expect(first["since"]).toBe("p9");
    first.peer.say({ type: "reset", id: "s1", reason: "the view was rebuilt" });
    await new Promise((resolve) => setTimeout(resolve, 20));
    first.peer.cut();
    const second = await asked("topics", 2);
    expect(second["since"]).toBe(null);
    second.peer.say({ type: "snapshot", id: "s1", position: "q1", rows: [] });
    await until(() => seen.length === 1);
    expect(seen[0]).toMatchObject({ snapshot: true, reset: "the view was rebuilt" });
  });

  test("a position that the server does not know is given up, not insisted on", async () => {
    const seen: Batch[] = [];
    wire.heard = (peer, said) => {
      if (said.type !== "subscribe") return;
      if (said["since"] !== null) peer.say({ type: "error", id: said.id, error: { code: "bad_position", message: "of another view" } });
      else peer.say({ type: "snapshot", id: said.id, position: "p1", rows: [] });
    };
    open().watch("topics", { since: "nonsense", onBatch: (batch) => void seen.push(batch) });
    await until(() => seen.length === 1);
    expect(seen[0]?.reset).toContain("bad_position");
  });

  test("what is wrong with the question ends it; what passes is asked again", async () => {
    let times = 0;
    wire.heard = (peer, said) => {
      if (said.type !== "subscribe") return;
      const code = said["view"] === "other" ? "bad_query" : ++times === 1 ? "not_ready" : null;
      if (code) peer.say({ type: "error", id: said.id, error: { code, message: "no", hint: "write it so" } });
      else peer.say({ type: "snapshot", id: said.id, position: "p1", rows: [] });
    };
    const client = open();
    await expect(client.watch("other").next()).rejects.toMatchObject({ code: "bad_query", hint: "write it so" });
    expect((await client.watch("topics").next()).value?.position).toBe("p1");
    expect(wire.peers).toHaveLength(1);
  });

  test("what is asked again has a new id, so that nothing that is on its way comes twice", async () => {
    const seen: string[] = [];
    open().watch("topics", { onBatch: ({ position }) => void seen.push(position) });
    const { peer } = await asked();
    peer.say({ type: "snapshot", id: "s1", position: "p1", rows: [] });
    peer.say({ type: "error", id: "s1", error: { code: "lagging", message: "no" } });
    await until(() => peer.said.filter(({ type }) => type === "subscribe").length === 2);
    const { id, since } = peer.asked()!;
    for (const from of ["s1", id]) for (const position of ["p2", "p3"]) peer.say({ type: "changes", id: from, position, upserts: [], deletes: [] });
    await until(() => seen.length >= 3);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect([id, since, seen]).toEqual(["s2", "p1", ["p1", "p2", "p3"]]);
  });

  test("rests when too much waits for a slow reader, and goes on without a gap", async () => {
    const last = 60;
    wire.heard = (peer, said) => {
      if (said.type !== "subscribe") return;
      const from = said["since"] === null ? 0 : Number(said["since"]);
      if (from === 0) peer.say({ type: "snapshot", id: said.id, position: "0", rows: [] });
      for (let n = from + 1; n <= last; n++) peer.say({ type: "changes", id: said.id, position: String(n), upserts: [row("a".repeat(500), n)], deletes: [] });
    };
    const watch = open().watch("topics", { queueBytes: 5000 });
    await until(() => watch.state === "stalled");
    await until(() => wire.last.said.filter(({ type }) => type === "unsubscribe").length === 1);
    const seen: string[] = [];
    for await (const { position } of watch) if ((seen.push(position), position === String(last))) break;
    expect(seen).toEqual(Array.from({ length: last + 1 }, (_, n) => String(n)));
  });

  test("acknowledges what was handled under its name, and sets the pace", async () => {
    serve([]);
    const watch = open({ world: { later: (run, ms) => { const timer = setTimeout(run, ms === 1000 ? 20 : ms); return () => clearTimeout(timer); } } }).watch("topics", { name: "mine", onBatch: () => {} });
    await until(() => wire.last?.said.some(({ type, position }) => type === "ack" && position === "p1"));
    watch.pace(5);
    await until(() => wire.last.said.some(({ type, per_s }) => type === "pace" && per_s === 5));
    wire.last.say({ type: "acked", id: "s1", position: "p1" });
    wire.last.say({ type: "error", id: "s1", error: { code: "every_change", message: "none can be left out" } });
    await expect(watch.done).rejects.toMatchObject({ code: "every_change" });
    await until(() => wire.last.said.some(({ type }) => type === "unsubscribe"));
  });

  test("an ack that fails ends nothing and asks nothing anew", async () => {
    serve([]);
    const told = vi.spyOn(console, "error").mockImplementation(() => {});
    const watch = open().watch("topics", { name: "mine", onBatch: () => {} });
    await until(() => watch.position === "p1");
    for (const code of ["bad_request", "bad_position", "disk_full"]) wire.last.say({ type: "error", id: "s1", to: "ack", error: { code, message: "no" } });
    wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [], deletes: [] });
    await until(() => watch.position === "p2");
    expect([watch.state, wire.last.said.length]).toEqual(["live", 1]);
    expect(told).toHaveBeenCalledTimes(3);
    told.mockRestore();
  });

  test("asks for the question and the pace that it was given before it had begun", async () => {
    const watch = open().watch("topics", { where: "n > 1", since: "p1" });
    watch.changeFilter({ where: "n > 5" });
    watch.pace(3);
    const said = await asked();
    expect([said["where"], said["since"]]).toEqual(["n > 5", null]);
    await until(() => said.peer.said.some(({ type, per_s }) => type === "pace" && per_s === 3));
  });

  test("keeps its position over a reload, as far as batches were handled", async () => {
    const store = new MemoryStore();
    serve([]);
    const first = open({ store });
    const watch = first.watch("topics", { keep: "mails", onBatch: () => {} });
    await until(() => watch.position === "p1");
    wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [], deletes: [] });
    await until(() => watch.position === "p2");
    first.close();
    open({ store }).watch("topics", { keep: "mails" });
    expect((await asked("topics", 2))["since"]).toBe("p2");
  });

  test("goes on only with the question whose batches were handled, and for the same person", async () => {
    const store = new MemoryStore();
    serve([]);
    const first = open({ store });
    const watch = first.watch("topics", { keep: "mails", onBatch: () => {} });
    await until(() => watch.position === "p1");
    wire.heard = () => {};
    watch.changeFilter({ where: "n > 5" });
    await until(() => wire.last.asked()?.["where"]);
    first.close();
    open({ store }).watch("topics", { keep: "mails", where: "n > 5" });
    expect((await asked("topics", 2))["since"]).toBe(null);
    open({ store, key: () => undefined }).watch("topics", { keep: "mails" });
    expect((await asked("topics", 3))["since"]).toBe(null);
    open({ store }).watch("topics", { keep: "mails" });
    expect((await asked("topics", 4))["since"]).toBe("p1");
  });

  test("waits for a slow store, whose position is not to be overwritten", async () => {
    const store = new MemoryStore();
    serve([]);
    const first = open({ store });
    const watch = first.watch("topics", { keep: "mails", onBatch: () => {} });
    await until(() => watch.position === "p1");
    first.close();
    const slow: Store = { get: async (name) => (await new Promise((resolve) => setTimeout(resolve, 1200)), store.get(name)), set: (...entry) => store.set(...entry), delete: (name) => store.delete(name) };
    open({ store: slow }).watch("topics", { keep: "mails" });
    expect((await asked("topics", 2))["since"]).toBe("p1");
  });
});

describe("a stream", () => {
  test("begins where it is told, and its end is made a position before anything else", async () => {
    wire.answer = ({ path, query }) => (path === "/streams/rsvps" && query["after"] === "end" ? { events: [], next: "e7" } : {});
    const events: unknown[] = [];
    open().stream("rsvps", { since: "end", where: "response = 'yes'", onBatch: (batch) => void events.push(...batch.events) });
    const said = await asked("rsvps");
    expect([said["since"], said["where"]]).toEqual(["e7", "response = 'yes'"]);
    said.peer.say({ type: "events", id: "s1", stream: "rsvps", position: "e8", events: [{ n: 1 }] });
    await until(() => events.length === 1);
    said.peer.cut();
    expect((await asked("rsvps", 2))["since"]).toBe("e8");
  });
});

describe("live", () => {
  test("holds the rows of one position and goes from batch to batch", async () => {
    serve([row("a", 1), row("b", 2)]);
    const live = open().live("topics");
    const states: State[] = [];
    const sizes: number[] = [];
    live.subscribe((batch) => (states.push(live.state), batch && sizes.push(live.size)));
    await live.ready;
    expect([live.get("a"), live.has("c"), [...live.keys()], live.position, live.state]).toEqual([row("a", 1), false, ["a", "b"], "p1", "live"]);
    wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [row("a", 5), row("c", 1)], deletes: [{ topic: "b" }, { topic: "a" }] });
    await until(() => live.position === "p2");
    expect(Object.fromEntries(live)).toEqual({ a: row("a", 5), c: row("c", 1) });
    expect(sizes).toEqual([2, 2]);
  });

  test("of a key with several columns is asked by an object, in any order", async () => {
    serve([{ a: 1, b: { start: "x", end: "y" }, n: 3 }]);
    const live = await open().live("pairs").ready;
    expect(live.get({ b: { end: "y", start: "x" }, a: 1 })?.["n"]).toBe(3);
    expect([...live.keys()]).toEqual([{ a: 1, b: { start: "x", end: "y" } }]);
  });

  test("says how far behind it is, and that it is offline", async () => {
    serve([row("a", 1)]);
    const live = await open().live("topics").ready;
    wire.last.say({ type: "stall", id: "s1", behind: { batches: 3, bytes: 100, seconds: 2 } });
    await until(() => live.state === "stalled");
    expect([live.behind?.batches, Math.floor((live.lag ?? 0) / 1000)]).toEqual([3, 2]);
    const accepted = new Date(Date.now() - 500).toISOString();
    wire.last.say({ type: "changes", id: "s1", position: "p2", upserts: [], deletes: [], accepted });
    await until(() => live.state === "live");
    expect(live.lag).toBeGreaterThanOrEqual(400);
    await wire.close();
    await until(() => live.state === "offline");
    expect(live.size).toBe(1);
  });

  test("keeps the old rows after a reset until the new ones are there, and learns a new key", async () => {
    serve([row("a", 1)]);
    const live = await open().live("topics").ready;
    wire.answer = () => ({ views: [{ view: "topics", key: ["n"] }] });
    wire.last.say({ type: "reset", id: "s1", reason: "rebuilt" });
    await until(() => live.state === "connecting");
    expect(live.get("a")).toEqual(row("a", 1));
    wire.last.say({ type: "snapshot", id: "s1", position: "q1", rows: [row("a", 1), row("a", 2)] });
    await until(() => live.position === "q1");
    expect([...live.keys()]).toEqual([1, 2]);
  });

  test("asks for its key ever more seldom, and not at all once the client is closed", async () => {
    serve([row("a", 1)]);
    wire.answer = (request) => refuse(request, 503, "not_ready");
    const pauses: number[] = [];
    const later = (run: () => void, ms: number): (() => void) => {
      if (ms < 1000) pauses.push(ms);
      const timer = setTimeout(run, ms < 1000 ? 5 : ms);
      return () => clearTimeout(timer);
    };
    const client = open({ world: { later, random: () => 1 }, backoffMostMs: 900 });
    client.live("topics", { keep: false });
    await until(() => wire.requests.length > 4);
    expect(pauses.slice(0, 4)).toEqual([100, 200, 400, 800]);
    client.close();
    const { length } = wire.requests;
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect(wire.requests.length).toBeLessThanOrEqual(length + 1);
  });

  test("is read by the old key while the new one is asked for", async () => {
    serve([row("a", 1)]);
    const live = await open().live("topics").ready;
    let told: (() => void) | undefined;
    wire.answer = ({ response }) => void (told = () => response.writeHead(200, { "Content-Type": "application/json" }).end('{"views":[{"view":"topics","key":["n"]}]}'));
    wire.last.say({ type: "reset", id: "s1", reason: "rebuilt" });
    wire.last.say({ type: "snapshot", id: "s1", position: "q1", rows: [row("a", 2)] });
    await until(() => told);
    expect([live.get("a"), live.has("a"), [...live.keys()], live.position]).toEqual([row("a", 1), true, ["a"], "p1"]);
    told!();
    await until(() => live.position === "q1");
    expect([live.get(2), [...live.keys()]]).toEqual([row("a", 2), [2]]);
  });

  test("takes another filter on the open socket, and no late answer to the old one", async () => {
    serve([row("a", 1)]);
    const live = await open().live("topics").ready;
    wire.heard = () => {};
    live.changeFilter({ where: "n > 5" });
    await until(() => wire.last.asked()?.["where"] === "n > 5");
    const { id, since } = wire.last.asked() as unknown as { id: string; since: unknown };
    expect(since).toBe(null);
    wire.last.say({ type: "snapshot", id: "s1", position: "p7", rows: [row("old", 1)] });
    wire.last.say({ type: "changes", id: "s1", position: "p8", upserts: [row("old", 2)], deletes: [] });
    wire.last.say({ type: "snapshot", id, position: "p9", rows: [row("new", 9)] });
    await until(() => live.position === "p9");
    expect([...live.keys()]).toEqual(["new"]);
    expect(wire.peers).toHaveLength(1);
  });

  test("batches that wait for the key are given up with the filter that they answer", async () => {
    let told: (() => void) | undefined;
    wire.answer = ({ response }) => void (told = () => response.writeHead(200, { "Content-Type": "application/json" }).end('{"views":[{"view":"topics","key":["topic"]}]}'));
    serve([row("a", 1)]);
    const live = open().live("topics");
    await until(() => told);
    wire.heard = () => {};
    live.changeFilter({ where: "n > 5" });
    await until(() => wire.last.asked()?.["where"]);
    told!();
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect([live.size, live.position]).toEqual([0, null]);
  });

  test("a listener that throws harms nobody", async () => {
    serve([row("a", 1)]);
    const told = vi.spyOn(console, "error").mockImplementation(() => {});
    const live = open().live("topics", { key: ["topic"] });
    let heard = 0;
    live.subscribe(() => {
      throw new Error("mine");
    });
    live.subscribe(() => heard++);
    await live.ready;
    expect(heard).toBeGreaterThan(0);
    expect(told).toHaveBeenCalled();
    told.mockRestore();
  });

  test("that was refused a filter can be given another one", async () => {
    wire.heard = (peer, { type, id, where }) => {
      if (type !== "subscribe") return;
      if (where === "(") peer.say({ type: "error", id, error: { code: "bad_query", message: "no" } });
      else peer.say({ type: "snapshot", id, position: "p1", rows: [row("a", 1)] });
    };
    const live = open().live("topics", { where: "(" });
    await expect(live.ready).rejects.toMatchObject({ code: "bad_query" });
    live.changeFilter({});
    await until(() => live.size === 1);
    expect([live.state, live.error]).toEqual(["live", null]);
  });

  test("that is refused says why and keeps nothing", async () => {
    const store = new MemoryStore();
    serve([row("a", 1)]);
    const first = open({ store });
    await first.live("topics").ready;
    first.close();
    wire.heard = (peer, said) => said.type === "subscribe" && peer.say({ type: "error", id: said.id, error: { code: "forbidden", message: "no" } });
    const client = open({ store });
    const second = client.live("topics");
    await expect(second.ready).rejects.toMatchObject({ code: "forbidden" });
    expect([second.size, second.state]).toEqual([1, "offline"]);
    second.save();
    client.close();
    second.close();
    const third = open({ store }).live("topics");
    await expect(third.ready).rejects.toMatchObject({ code: "forbidden" });
    expect(third.size).toBe(0);
  });
});

describe("the connection", () => {
  test.each([[4401, "unauthorized"], [4403, "forbidden"], [1008, "forbidden"]])("is not made again after %i", async (code, name) => {
    const watch = open({ key: "psk_1" }).watch("topics");
    const { peer } = await asked();
    peer.close(code, "not any more");
    await expect(watch.next()).rejects.toMatchObject({ code: name });
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect(wire.peers).toHaveLength(1);
  });

  test.each([1001, 1006, 1011, 1012, 4008])("is made again after %i, from the last position", async (code) => {
    serve([]);
    const client = open();
    const live = await client.live("topics").ready;
    if (code === 1006) wire.last.cut();
    else wire.last.close(code);
    expect((await asked("topics", 2))["since"]).toBe("p1");
    await until(() => live.state === "live");
  });

  test("with a key that changes comes back with the next one, and never again with the refused one", async () => {
    const keys = ["old", "old", "new"];
    let given = 0;
    serve([]);
    const client = open({ key: () => keys[Math.min(given++, 2)] });
    const live = client.live("topics", { key: ["topic"] });
    await asked();
    wire.last.say({ type: "error", error: { code: "unauthorized", message: "revoked" } });
    wire.last.close(4401);
    await until(() => wire.peers.length === 2);
    expect(wire.last.protocols).toBe("penstock, bearer.new");
    await until(() => live.state === "live");
  });

  test("that falls silent is asked, and given up when nobody answers", async () => {
    serve([]);
    const client = open({ silenceMs: 40, pongMs: 40 });
    const live = await client.live("topics").ready;
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(wire.peers).toHaveLength(1);
    wire.last.alive = false;
    await until(() => wire.peers.length === 2);
    await until(() => live.state === "live");
    expect(wire.last.asked()?.["since"]).toBe("p1");
  });

  test("is looked at when the machine wakes up or the network is back, and made at once when it was broken", async () => {
    let wake = (): void => {};
    let late = 0;
    const later = (run: () => void, ms: number): (() => void) => {
      const timer = setTimeout(run, ms === 5000 ? 20 : ms); // the clock's watchman comes often
      return () => clearTimeout(timer);
    };
    serve([]);
    const client = open({ world: { listen: (run) => ((wake = run), () => {}), later, now: () => Date.now() + late }, backoffMostMs: 60_000 });
    const live = await client.live("topics").ready;
    wire.last.alive = false;
    late = 60_000; // it slept
    await until(() => wire.peers.length === 2);
    await until(() => live.state === "live");
    const { port } = wire;
    await wire.close();
    await until(() => live.state === "offline");
    await new Promise((resolve) => setTimeout(resolve, 500));
    wire = await Wire.open(port);
    serve([]);
    wake();
    await until(() => wire.peers.length === 1);
  });

  test("rests while the page is hidden, if it is told to", async () => {
    let hidden = false;
    let wake = (): void => {};
    serve([]);
    const client = open({ restWhenHidden: true, world: { listen: (run) => ((wake = run), () => {}), hidden: () => hidden } });
    await client.live("topics").ready;
    hidden = true;
    wire.last.cut();
    await new Promise((resolve) => setTimeout(resolve, 150));
    expect(wire.peers).toHaveLength(1);
    hidden = false;
    wake();
    await until(() => wire.peers.length === 2);
  });

  test("tells its state, and why", async () => {
    serve([]);
    const states: string[] = [];
    const client = open({ onState: ({ state }) => states.push(state) });
    client.connect();
    await until(() => states.includes("live"));
    const { port } = wire;
    await wire.close();
    await until(() => client.state === "offline");
    expect(client.error?.code).toBe("unreachable");
    wire = await Wire.open(port);
    await until(() => client.state === "live");
    expect(states).toEqual(["live", "connecting", "offline", "live"]);
    expect(client.error).toBe(null);
  });

  test("ends when nobody needs it any more", async () => {
    serve([]);
    const live = await open().live("topics").ready;
    live.close();
    await until(() => !wire.last.open);
  });
});
