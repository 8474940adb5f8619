// A row is news when its content is another one than what was last shown, and only once.
import { expect, test } from "vitest";
import { Fresh } from "../src/logic/fresh";
import { keyOf, type Row } from "../src/server/client";

const at = (minute: number) => ({ start: `2026-01-01T00:0${minute}:00.000Z`, end: `2026-01-01T00:0${minute + 1}:00.000Z` });
const changes = (upserts: Row[], deletes: Row[] = []) => ({ snapshot: false, upserts, deletes });
const snapshot = (upserts: Row[]) => ({ snapshot: true, upserts, deletes: [] });

function loaded(): Fresh {
  const fresh = new Fresh(["topic"]);
  fresh.take(snapshot([{ topic: "a", n: 1 }, { topic: "b", n: 2 }]));
  return fresh;
}

test("the first snapshot is not news", () => {
  expect(loaded().takeFresh()).toEqual(new Set());
});

test("only rows whose content changed are fresh, once", () => {
  const fresh = loaded();
  fresh.take(changes([{ topic: "a", n: 1 }, { topic: "b", n: 3 }]));
  expect(fresh.takeFresh()).toEqual(new Set([keyOf({ topic: "b" }, ["topic"])]));
  expect(fresh.takeFresh()).toEqual(new Set());
});

test("a row that is gone is no news, and one that comes back is", () => {
  const fresh = loaded();
  fresh.take(changes([{ topic: "a", n: 9 }]));
  fresh.take(changes([], [{ topic: "a" }]));
  expect(fresh.takeFresh()).toEqual(new Set());
  fresh.take(changes([{ topic: "a", n: 9 }]));
  expect(fresh.takeFresh()).toEqual(new Set(['{"topic":"a"}']));
});

test("the snapshot after a reset marks what differs", () => {
  const fresh = loaded();
  fresh.take(snapshot([{ topic: "b", n: 2 }, { topic: "c", n: 7 }]));
  expect(fresh.takeFresh()).toEqual(new Set(['{"topic":"c"}']));
});

test("a window is the same key however its fields are arranged", () => {
  const { start, end } = at(1);
  expect(keyOf({ window: { start, end } }, ["window"])).toBe(keyOf({ window: { end, start } }, ["window"]));
});
