// The feed must resume where it was, deliver snapshots whole, and come back by itself without hammering.
import { beforeEach, expect, test } from "vitest";
import type { Row } from "../src/wire/contract";
import { backoff } from "../src/wire/backoff";
import { Feed, type Connection } from "../src/wire/feed";

class FakeSocket {
  sent: Record<string, unknown>[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  send(text: string): void {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }
  close(): void {}
  say(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
}

let sockets: FakeSocket[];
let timers: { run: () => void; ms: number }[];
let states: Connection[];
let got: unknown[];
let hidden: boolean;
let feed: Feed;

const last = () => sockets.at(-1)!;
const subscriber = {
  snapshot: (rows: Row[]) => got.push(["snapshot", rows]),
  changes: (upserts: Row[], deletes: Row[], accepted: string | null) => got.push(["changes", upserts, deletes, accepted]),
  error: (problem: { code: string }) => got.push(["error", problem.code]),
};

beforeEach(() => {
  [sockets, timers, states, got, hidden] = [[], [], [], [], false];
  feed = new Feed({
    open: () => (sockets.push(new FakeSocket()), last() as unknown as WebSocket),
    random: () => 1,
    later: (run, ms) => (timers.push({ run, ms }), () => undefined),
    hidden: () => hidden,
  }, (state) => states.push(state));
  feed.subscribe({ view: "topics" }, subscriber);
  feed.connect();
});

function open(): void {
  last().onopen?.();
}

test("subscribes without a position at first", () => {
  open();
  expect(last().sent).toEqual([{ type: "subscribe", id: "s1", view: "topics", since: null }]);
});

test("resumes with the last position after a broken connection", () => {
  open();
  last().say({ type: "snapshot", id: "s1", position: "p1", rows: [] });
  last().say({ type: "changes", id: "s1", position: "p2", upserts: [], deletes: [] });
  last().say({ type: "position", id: "s1", position: "p3" });
  last().onclose?.();
  timers.at(-1)!.run();
  open();
  expect(last().sent[0]).toMatchObject({ id: "s1", since: "p3" });
});

test("a snapshot in parts arrives once and whole", () => {
  open();
  last().say({ type: "snapshot", id: "s1", position: "p1", rows: [{ t: 1 }], part: 1, parts: 2 });
  expect(got).toEqual([]);
  last().say({ type: "snapshot", id: "s1", position: "p1", rows: [{ t: 2 }], part: 2, parts: 2 });
  expect(got).toEqual([["snapshot", [{ t: 1 }, { t: 2 }]]]);
});

test("parts of a broken connection are forgotten and asked for again", () => {
  open();
  last().say({ type: "snapshot", id: "s1", position: "p1", rows: [{ t: 1 }], part: 1, parts: 2 });
  last().onclose?.();
  timers.at(-1)!.run();
  open();
  expect(last().sent[0]).toMatchObject({ since: null });
  last().say({ type: "snapshot", id: "s1", position: "p2", rows: [{ t: 9 }] });
  expect(got).toEqual([["snapshot", [{ t: 9 }]]]);
});

test("after a reset the old position is never used again", () => {
  open();
  last().say({ type: "snapshot", id: "s1", position: "p1", rows: [] });
  last().say({ type: "reset", id: "s1", reason: "rebuilt" });
  last().onclose?.();
  timers.at(-1)!.run();
  open();
  expect(last().sent[0]).toMatchObject({ since: null });
});

test("is connecting at the first break, offline once an attempt failed, connected when it is back", () => {
  open();
  last().onclose?.();
  timers.at(-1)!.run();
  last().onclose?.();
  timers.at(-1)!.run();
  open();
  expect(states).toEqual(["connected", "connecting", "offline", "connected"]);
});

test("makes no attempt while hidden, and one when asked to connect", () => {
  open();
  last().onclose?.();
  hidden = true;
  timers.at(-1)!.run();
  expect(sockets).toHaveLength(1);
  feed.connect();
  expect(sockets).toHaveLength(2);
});

test("a suspected socket is dropped at once and its late messages are ignored", () => {
  open();
  const old = last();
  feed.suspect();
  old.say({ type: "snapshot", id: "s1", position: "p1", rows: [] });
  expect(got).toEqual([]);
  expect(timers).toHaveLength(1);
});

test("an ended subscription is unsubscribed and hears nothing more", () => {
  open();
  const end = feed.subscribe({ view: "other" }, subscriber);
  end();
  last().say({ type: "snapshot", id: "s2", position: "p1", rows: [] });
  expect(last().sent.at(-1)).toEqual({ type: "unsubscribe", id: "s2" });
  expect(got).toEqual([]);
});

test("errors reach their subscription", () => {
  open();
  last().say({ type: "error", id: "s1", error: { code: "unknown_view", message: "" } });
  expect(got).toEqual([["error", "unknown_view"]]);
});

test("waits grow, are capped, and keep at least half of their step", () => {
  expect([0, 1, 2, 9].map((n) => backoff(n, () => 1))).toEqual([400, 800, 1600, 10_000]);
  expect(backoff(2, () => 0)).toBe(800);
});
