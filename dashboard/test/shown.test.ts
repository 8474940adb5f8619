// What is printed and where it stands: order, formats, freshness and the layout of the graph.
import { expect, test } from "vitest";
import * as format from "../src/logic/format";
import { Freshness } from "../src/logic/freshness";
import { layout } from "../src/logic/layout";
import { ordering } from "../src/logic/order";
import { labelled, labelOf, shownTimes } from "../src/logic/series";
import type { Row } from "../src/server/documents";

const columns = [{ name: "n", type: "decimal(10,2)" }, { name: "name", type: "string" }];
const sorted = (orderBy: string[], rows: Row[]) => [...rows].sort(ordering(orderBy, ["name"], columns)).map((row) => row.name);

test("numbers that arrive as text are ordered as numbers, ties by key", () => {
  expect(sorted(["-n"], [{ name: "c", n: "9.00" }, { name: "b", n: "10.00" }, { name: "a", n: "9.00" }])).toEqual(["b", "a", "c"]);
});

test("nulls come first ascending and last descending", () => {
  const rows = [{ name: "a", n: 1 }, { name: "b", n: null }];
  expect(sorted(["n"], rows)).toEqual(["b", "a"]);
  expect(sorted(["-n"], rows)).toEqual(["a", "b"]);
});

test("numbers are printed for people and lose no digit when they arrive as text", () => {
  expect([0, 1234, 12.5, 0.5, 0.00012].map(format.number)).toEqual(["0", "1,234", "12.50", "0.500", "0.00012"]);
  expect(["9007199254740993", "-18230.50", "abc"].map(format.digits)).toEqual(["9,007,199,254,740,993", "-18,230.50", "abc"]);
  expect(format.compact(18_230)).toBe("18.2K");
});

test("an axis of times names a day once, where it begins, and today not at all", () => {
  const at = (day: number, hour: number) => new Date(2026, 0, day, hour).getTime() / 1000;
  const now = new Date(2026, 0, 2, 23);
  expect(format.ticks([at(2, 9), at(2, 10)], now)).toEqual(["09:00", "10:00"]);
  expect(format.ticks([at(1, 22), at(1, 23), at(2, 0), at(2, 1)], now)).toEqual(["22:00\n2026-01-01", "23:00", "00:00\n2026-01-02", "01:00"]);
  expect(format.ticks([at(1, 0), at(3, 0)], now)).toEqual(["2026-01-01", "2026-01-03"]);
});

test("a bar or line whose name is an empty text still has a label", () => {
  expect([{ a: "", b: 1 }, { a: null, b: "x" }].map((row) => labelOf(row, ["a", "b"]))).toEqual(['"" · 1', "– · x"]);
});

test("durations are printed in the unit that fits", () => {
  expect([null, 166.4, 1_234, 12_340, 90_000].map(format.milliseconds)).toEqual(["–", "166 ms", "1.23 s", "12.3 s", "1 min"]);
  expect([42, 720, 15_120, 273_600].map(format.span)).toEqual(["42 s", "12 min", "4 h 12 min", "3 d 4 h"]);
});

test("a window names its day only where it is not today", () => {
  const value = { start: new Date(2026, 0, 2, 9, 5).toISOString(), end: new Date(2026, 0, 2, 9, 6).toISOString() };
  expect(format.window(value, new Date(2026, 0, 2))).toBe("09:05 – 09:06");
  expect(format.window(value, new Date(2026, 0, 3))).toBe("2026-01-02 09:05 – 09:06");
});

test("any value has a text", () => {
  expect([null, true, ["a", 1], { x: 1 }, "plain"].map((value) => format.cell(value))).toEqual(["–", "true", "a, 1", '{"x":1}', "plain"]);
});

test("freshness takes ranks over the last 500 batches and never goes below zero", () => {
  const freshness = new Freshness();
  expect(freshness.percentiles()).toEqual({ p50: null, p99: null });
  freshness.shown(Number.NaN, 5);
  for (let age = 1; age <= 1_000; age++) freshness.shown(1_000, 1_000 + age);
  expect(freshness.percentiles()).toEqual({ p50: 750, p99: 995 });
  const skewed = new Freshness();
  skewed.shown(2_000, 1_000);
  expect(skewed.percentiles().p50).toBe(0);
});

test("every edge of the graph goes forward, and a cycle does not hang the layout", () => {
  const node = (name: string) => ({ name, kind: "flow" });
  const edges = [["a", "b"], ["b", "d"], ["a", "d"], ["c", "d"]].map(([from, to]) => ({ from: from!, to: to! }));
  const placed = new Map(layout({ app: "x", nodes: ["a", "b", "c", "d"].map(node), edges }).map((item) => [item.node.name, item.layer]));
  for (const { from, to } of edges) expect(placed.get(from)).toBeLessThan(placed.get(to)!);
  expect(layout({ app: "x", nodes: ["a", "b"].map(node), edges: [{ from: "a", to: "b" }, { from: "b", to: "a" }] })).toHaveLength(2);
  expect(layout({ app: "x", nodes: [], edges: [] })).toEqual([]);
});

test("a time that is alone is shown in its minutes, and several from the first to the last", () => {
  expect(shownTimes([1000], 1000, 86_401_000)).toEqual([940, 1060]);
  expect(shownTimes([1000, 1060], 1000, 1060)).toEqual([1000, 1060]);
});

test("counts have no halves on their axis, measured values do", () => {
  expect(labelled([{ label: "a", values: [1, null, 3] }], [0, 0.5, 1])).toEqual([true, false, true]);
  expect(labelled([{ label: "a", values: [1.5] }], [0, 0.5, 1])).toEqual([true, true, true]);
});
