// The chart must follow from the columns alone, for views that nobody here has seen.
import { expect, test } from "vitest";
import { chartsOf, type LineChart } from "../src/logic/chart-choice";
import { barsOf, leadersOf, linesOf } from "../src/logic/series";
import { historyQuestion, orderOf, tableQuestion } from "../src/logic/subscriptions";
import type { View } from "../src/server/documents";

const WINDOW = "struct<start:timestamp,end:timestamp>";

function view(key: string[], columns: Record<string, string>, rest: Partial<View> = {}): View {
  return { view: "v", key, columns: Object.entries(columns).map(([name, type]) => ({ name, type })), order_by: null, limit: null, ...rest };
}

const trending = view(["window", "topic"], { window: WINDOW, topic: "string", rsvps: "bigint" }, { order_by: ["-window", "-rsvps"], limit: 10 });
const at = (minute: number) => ({ start: `2026-01-01T00:0${minute}:00.000Z`, end: `2026-01-01T00:0${minute + 1}:00.000Z` });

test("a window, a name and a number are lines, and bars of the newest window", () => {
  expect(chartsOf(trending)).toEqual([
    { kind: "lines", time: "window", names: ["topic"], number: "rsvps" },
    { kind: "bars", time: "window", names: ["topic"], number: "rsvps" },
  ]);
});

test("a name and a number are bars, also when the name is a number in the key", () => {
  expect(chartsOf(view(["country"], { country: "string", yes: "bigint" }))[0]?.kind).toBe("bars");
  expect(chartsOf(view(["shop"], { shop: "int", total: "decimal(10,2)" }))).toEqual([{ kind: "bars", time: null, names: ["shop"], number: "total" }]);
});

test("a time alone is one line", () => {
  expect(chartsOf(view(["minute"], { minute: "timestamp", n: "double" }))).toEqual([{ kind: "lines", time: "minute", names: [], number: "n" }]);
});

test("a time outside the key does not make lines", () => {
  expect(chartsOf(view(["country"], { country: "string", yes: "bigint", last_seen: "timestamp" }))[0]?.kind).toBe("bars");
});

test("the number is the one that the rows are ranked by", () => {
  const ranked = view(["a"], { a: "string", x: "int", y: "int" }, { order_by: ["-y"] });
  expect(chartsOf(ranked)[0]?.number).toBe("y");
});

test("no number, no chart", () => {
  expect(chartsOf(view(["a"], { a: "string", b: "array<int>" }))).toEqual([]);
});

test("a view with a limit is asked for with its own defaults, one without is bounded, newest first", () => {
  expect(tableQuestion(trending)).toEqual({ orderBy: ["-window", "-rsvps"], limit: 10 });
  expect(tableQuestion(view(["a"], { a: "string" }, { limit: 3 }))).toEqual({ orderBy: ["a"], limit: 3 });
  const open = view(["window", "a"], { window: WINDOW, a: "string", n: "int" });
  expect(orderOf(open)).toEqual(["-window", "a"]);
  expect(tableQuestion(open)).toEqual({ orderBy: ["-window", "a"], limit: 200 });
});

test("the history asks for the leaders by name, with quotes made safe", () => {
  const chart = chartsOf(trending)[0] as LineChart;
  const asked = historyQuestion(chart, [{ topic: "O'Reilly" }, { topic: null }]);
  expect(asked).toEqual({ where: "topic = 'O''Reilly' OR topic IS NULL", orderBy: ["-window", "topic"], limit: 360 });
});

test("leaders are the names with the highest numbers, each once", () => {
  const rows = [{ window: at(2), topic: "a", rsvps: 1 }, { window: at(1), topic: "a", rsvps: 9 }, { window: at(1), topic: "b", rsvps: 5 }, { window: at(1), topic: "c", rsvps: 2 }];
  expect(leadersOf(rows, chartsOf(trending)[0] as LineChart, 2).map((row) => row.topic)).toEqual(["a", "b"]);
});

test("lines share one ascending time axis with gaps where a name has no row", () => {
  const rows = [{ window: at(2), topic: "a", rsvps: 3 }, { window: at(1), topic: "a", rsvps: 1 }, { window: at(2), topic: "b", rsvps: 7 }];
  const lines = linesOf(rows, chartsOf(trending)[0] as LineChart, [{ topic: "a" }, { topic: "b" }]);
  expect(lines.times).toEqual([Date.parse(at(1).start) / 1000, Date.parse(at(2).start) / 1000]);
  expect(lines.lines).toEqual([{ label: "a", values: [1, 3] }, { label: "b", values: [null, 7] }]);
});

test("bars rank the rows of the newest window, decimals included", () => {
  const rows = [{ window: at(1), topic: "old", rsvps: 99 }, { window: at(2), topic: "a", rsvps: "2.50" }, { window: at(2), topic: "b", rsvps: 10 }];
  expect(barsOf(rows, { kind: "bars", time: "window", names: ["topic"], number: "rsvps" }, 5).map((bar) => [bar.label, bar.value])).toEqual([["b", 10], ["a", 2.5]]);
});
