// Where no WebSocket gets through: Server-Sent Events, EventSource with tickets, polling, and the way from one to the other.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Batch, type Client, type ClientOptions, connect, type Row } from "../src/reader/client.js";
import { SseParser } from "../src/reader/sse-parser.js";
import type { SourceLike } from "../src/reader/world.js";
import { type Asked, refuse, streaming, Wire } from "./wire.js";

let wire: Wire;
let client: Client;
let batches: Batch[];
/** The present row, the position and everybody who waits for a change: a view with one row. */
let at: number;
let waiting: Set<() => void>;

beforeEach(async () => {
  wire = await Wire.open();
  wire.answer = answer;
  wire.heard = (peer, said) => {
    if (said.type !== "subscribe") return;
    follow(said["since"] as string | null, (type, data) => peer.say({ type, id: said.id, ...data }));
  };
  [at, waiting, batches] = [1, new Set(), []];
});

afterEach(async () => {
  client.close();
  await wire.close();
});

const row = (n: number): Row => ({ topic: "a", n });
const until = (condition: () => unknown, timeout = 10_000): Promise<void> => vi.waitFor(() => expect(condition()).toBeTruthy(), { timeout, interval: 2 });

function answer(asked: Asked): unknown {
  const { path, query } = asked;
  if (path === "/views") return { views: [{ view: "topics", key: ["topic"] }] };
  if (path === "/healthz") return { status: "ok" };
  if (path === "/tickets") return { ticket: "once" };
  if (query["where"] === "(") return refuse(asked, 400, "bad_query");
  if (path === "/views/topics/events") return void follow(query["last_event_id"] ?? null, streaming(asked));
  if (query["since"] === undefined) return { view: "topics", position: `p${at}`, rows: [row(at)] };
  const since = Number(query["since"].slice(1));
  if (since < at) return { messages: [{ type: "changes", position: `p${at}`, upserts: [row(at)], deletes: [] }], position: `p${at}` };
  waiting.add(() => asked.response.writeHead(204).end());
}

function follow(since: string | null, say: (type: string | null, data: Record<string, unknown>) => void): void {
  const change = (): void => say("changes", { position: `p${at}`, upserts: [row(at)], deletes: [] });
  if (since === null) say("snapshot", { position: `p${at}`, rows: [row(at)] });
  else if (Number(since.slice(1)) < at) change();
  waiting.add(change);
}

function step(): void {
  at += 1;
  const told = [...waiting];
  waiting = new Set(told.filter((each) => each.name === "change"));
  for (const tell of told) tell();
}

function watch(options: ClientOptions = {}): Client {
  client = connect(wire.url, { backoffMostMs: 20, ...options });
  client.watch("topics", { onBatch: (batch) => void batches.push(batch) });
  return client;
}

const seen = (): unknown[] => batches.map(({ snapshot, position }) => `${snapshot ? "snapshot " : ""}${position}`);

test.each(["events", "poll"] as const)("%s alone gives the snapshot and every batch", async (transport) => {
  watch({ transports: [transport], key: "psk_1" });
  await until(() => batches.length === 1);
  for (let n = 2; n < 6; n++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    step();
    await until(() => batches.length === n);
  }
  expect(seen()).toEqual(["snapshot p1", "p2", "p3", "p4", "p5"]);
  expect(wire.requests.every(({ key }) => key === "Bearer psk_1")).toBe(true);
});

test("a WebSocket that is blocked where requests pass gives way to events, those to polling, with the same position", async () => {
  watch();
  await until(() => batches.length === 1);
  expect(client.transport).toBe("websocket");
  wire.socketsAllowed = false;
  at += 1;
  wire.last.cut();
  await until(() => batches.length === 2);
  expect(client.transport).toBe("events");
  expect(wire.requests.at(-1)).toMatchObject({ path: "/views/topics/events", query: { last_event_id: "p1" } });
  const events = wire.requests.at(-1)!;
  const before = wire.answer;
  wire.answer = (asked) => (asked.path.endsWith("/events") ? void asked.response.destroy() : before(asked));
  at += 1;
  events.response.destroy();
  await until(() => batches.length === 3);
  expect(client.transport).toBe("poll");
  expect(seen()).toEqual(["snapshot p1", "p2", "p3"]);
});

test("a server that is just away is no reason to give up the WebSocket", async () => {
  watch();
  await until(() => batches.length === 1);
  const { port } = wire;
  await wire.close();
  await new Promise((resolve) => setTimeout(resolve, 200));
  wire = await Wire.open(port);
  wire.answer = answer;
  wire.heard = (peer, said) => said.type === "subscribe" && peer.say({ type: "changes", id: said.id, position: "p9", upserts: [], deletes: [] });
  await until(() => batches.length === 2);
  expect([client.transport, wire.last.asked()?.["since"]]).toEqual(["websocket", "p1"]);
});

test("a WebSocket that is refused for want of a key is not tried for ever", async () => {
  wire.socketsAllowed = false;
  wire.answer = (asked) => refuse(asked, 401, "unauthorized");
  client = connect(wire.url, { backoffMostMs: 20 });
  await expect(client.watch("topics").next()).rejects.toMatchObject({ code: "unauthorized" });
});

test("that a key is wanted is told to somebody who was told before that the server is away", async () => {
  const told: string[] = [];
  wire.socketsAllowed = false;
  wire.answer = (asked) => void setTimeout(() => asked.response.writeHead(401).end(), 500); // later than the second try
  client = connect(wire.url, { backoffMostMs: 20, onState: ({ state, error }) => told.push(`${state} ${error?.code}`) });
  client.watch("topics").next().catch(() => {});
  await until(() => told.includes("offline unauthorized"));
  expect(told).toContain("offline unreachable");
});

test.each(["events", "poll"] as const)("over %s what is wrong with the question ends it", async (transport) => {
  client = connect(wire.url, { transports: [transport] });
  await expect(client.watch("topics", { where: "(" }).next()).rejects.toMatchObject({ code: "bad_query" });
});

test("a stream of events that falls silent is opened again", async () => {
  watch({ transports: ["events"], silenceMs: 50, pongMs: 20 });
  await until(() => wire.requests.filter(({ path }) => path.endsWith("/events")).length > 2);
  expect(wire.requests.at(-1)?.query).toMatchObject({ last_event_id: "p1" });
  expect(seen()).toEqual(["snapshot p1"]);
});

/** What a browser has: over fetch, as close as is needed here. */
class Source implements SourceLike {
  static readonly opened: Source[] = [];
  onopen: ((event: never) => void) | null = null;
  onerror: ((event: never) => void) | null = null;
  readonly #stop = new AbortController();
  readonly #listeners = new Map<string, (event: MessageEvent<string>) => void>();

  constructor(readonly url: string) {
    Source.opened.push(this);
    void this.#run().catch(() => this.onerror?.({} as never));
  }

  addEventListener(type: string, listener: (event: MessageEvent<string>) => void): void {
    this.#listeners.set(type, listener);
  }

  close(): void {
    this.onerror = null;
    this.#stop.abort();
  }

  async #run(): Promise<void> {
    const response = await fetch(this.url, { signal: this.#stop.signal });
    if (!response.ok) throw new Error("refused");
    this.onopen?.({} as never);
    const parser = new SseParser();
    for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
      for (const { type, data } of parser.take(piece)) if (data) this.#listeners.get(type)?.({ data } as MessageEvent<string>);
    }
    throw new Error("ended");
  }
}

test("an EventSource shows a ticket instead of the key, a new one each time", async () => {
  Source.opened.length = 0;
  watch({ transports: ["events"], EventSource: Source, key: "psk_1" });
  await until(() => batches.length === 1);
  const first = new URL(Source.opened[0]!.url);
  expect(Object.fromEntries(first.searchParams)).toEqual({ ticket: "once" });
  expect(JSON.parse(wire.requests.find(({ path }) => path === "/tickets")!.body)).toEqual({ view: "topics" });
  at += 1;
  wire.requests.find(({ path }) => path.endsWith("/events"))!.response.destroy();
  await until(() => batches.length === 2);
  expect(new URL(Source.opened.at(-1)!.url).searchParams.get("last_event_id")).toBe("p1");
  expect(wire.requests.filter(({ path }) => path === "/tickets")).toHaveLength(2);
  step();
  await until(() => batches.length === 3);
  expect(seen()).toEqual(["snapshot p1", "p2", "p3"]);
});

test("an EventSource that is refused tells why by a plain request", async () => {
  client = connect(wire.url, { transports: ["events"], EventSource: Source });
  await expect(client.watch("topics", { where: "(" }).next()).rejects.toMatchObject({ code: "bad_query" });
});

test("a browser's few connections are not used up by streams: the rest take turns", async () => {
  Source.opened.length = 0;
  client = connect(wire.url, { transports: ["events"], EventSource: Source });
  const lives = Array.from({ length: 7 }, (_, n) => client.live("topics", { key: ["topic"], where: `n > ${-n}` }));
  await Promise.all(lives.map((live) => live.ready));
  expect(Source.opened).toHaveLength(4);
  step();
  await until(() => lives.every((live) => live.get("a")?.["n"] === 2));
});

test("events are read from any pieces of bytes", () => {
  const text = ": hello\r\n\r\nid: p1\r\nevent: changes\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nid: p2\n\nevent: lost\n\ndata:x\n\n";
  for (let size = 1; size < text.length; size++) {
    const parser = new SseParser();
    const events = [];
    for (let n = 0; n < text.length; n += size) events.push(...parser.take(text.slice(n, n + size)));
    expect(events).toEqual([{ type: "changes", data: '{"a":\n1}', id: "p1" }, { type: "", data: "", id: "p2" }, { type: "", data: "x", id: undefined }]);
  }
});
