// The page's copy of a view must equal the server's rows after any mix of snapshots and batches.
import { expect, test } from "vitest";
import { keyOf } from "../src/logic/key";
import { Replica } from "../src/logic/replica";

const at = (minute: number) => ({ start: `2026-01-01T00:0${minute}:00.000Z`, end: `2026-01-01T00:0${minute + 1}:00.000Z` });

function loaded(): Replica {
  const replica = new Replica(["topic"]);
  replica.snapshot([{ topic: "a", n: 1 }, { topic: "b", n: 2 }]);
  return replica;
}

test("the first snapshot is not news", () => {
  expect(loaded().takeFresh()).toEqual(new Set());
});

test("a batch upserts and deletes by key", () => {
  const replica = loaded();
  replica.changes([{ topic: "a", n: 5 }, { topic: "c", n: 1 }], [{ topic: "b" }]);
  expect([...replica.rows.values()]).toEqual([{ topic: "a", n: 5 }, { topic: "c", n: 1 }]);
});

test("only rows whose content changed are fresh, once", () => {
  const replica = loaded();
  replica.changes([{ topic: "a", n: 1 }, { topic: "b", n: 3 }], []);
  expect(replica.takeFresh()).toEqual(new Set([keyOf({ topic: "b" }, ["topic"])]));
  expect(replica.takeFresh()).toEqual(new Set());
});

test("a row in both lists of a batch ends up as the upsert", () => {
  const replica = loaded();
  replica.changes([{ topic: "a", n: 9 }], [{ topic: "a" }]);
  expect(replica.rows.get(keyOf({ topic: "a" }, ["topic"]))).toEqual({ topic: "a", n: 9 });
});

test("the snapshot after a reset replaces all rows and marks what differs", () => {
  const replica = loaded();
  replica.snapshot([{ topic: "b", n: 2 }, { topic: "c", n: 7 }]);
  expect([...replica.rows.keys()]).toEqual(['{"topic":"b"}', '{"topic":"c"}']);
  expect(replica.takeFresh()).toEqual(new Set(['{"topic":"c"}']));
});

test("a window is the same key however its fields are arranged", () => {
  const { start, end } = at(1);
  expect(keyOf({ window: { start, end } }, ["window"])).toBe(keyOf({ window: { end, start } }, ["window"]));
});
