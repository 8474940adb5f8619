// Arranges rows as a chart draws them: leaders by rank, lines on one time axis, bars by length.
import type { Row } from "../server/documents";
import type { BarChart, LineChart } from "./chart-choice";
import { numberOf, timeOf } from "./columns";
import { cell } from "./format";
import { canonical } from "../server/client";

export interface Line {
  label: string;
  values: (number | null)[];
}

/** What is shown before and behind a time that is alone; uPlot's own choice is years. */
const ALONE_S = 60;

export interface Lines {
  /** Seconds since 1970, ascending, as uPlot wants them. */
  times: number[];
  lines: Line[];
}

export interface Bar {
  key: string;
  label: string;
  value: number;
}

export function labelOf(row: Row, names: string[]): string {
  return names.map((name) => cell(row[name]) || '""').join(" · ");
}

/** One row per name, those with the highest number first; rows come in the view's order, so the newest of a name counts. */
export function leadersOf(rows: Row[], chart: LineChart, count: number): Row[] {
  const best = new Map<string, Row>();
  for (const row of rows) {
    const name = identity(row, chart.names);
    const held = best.get(name);
    if (!held || (numberOf(row[chart.number]) ?? 0) > (numberOf(held[chart.number]) ?? 0)) best.set(name, row);
  }
  const ranked = [...best.values()].sort((a, b) => (numberOf(b[chart.number]) ?? 0) - (numberOf(a[chart.number]) ?? 0));
  return ranked.slice(0, count);
}

export function linesOf(rows: Iterable<Row>, chart: LineChart, leaders: Row[]): Lines {
  const order = chart.names.length === 0 ? [""] : leaders.map((row) => identity(row, chart.names));
  const labels = chart.names.length === 0 ? [chart.number] : leaders.map((row) => labelOf(row, chart.names));
  const points = new Map<string, Map<number, number | null>>(order.map((name) => [name, new Map()]));
  const times = new Set<number>();
  for (const row of rows) {
    const time = timeOf(row[chart.time]);
    const line = points.get(identity(row, chart.names));
    if (time === null || !line) continue;
    times.add(time);
    line.set(time, numberOf(row[chart.number]));
  }
  const axis = [...times].sort((a, b) => a - b);
  const lines = order.map((name, i) => ({
    label: labels[i] ?? "",
    values: axis.map((time) => points.get(name)?.get(time) ?? null),
  }));
  return { times: axis.map((time) => time / 1000), lines };
}

/** The longest bars first. With a time in the key, only rows of the newest time. */
export function barsOf(rows: Iterable<Row>, chart: BarChart, count: number): Bar[] {
  let all = [...rows];
  if (chart.time !== null) {
    const column = chart.time;
    const newest = all.reduce((max, row) => Math.max(max, timeOf(row[column]) ?? -Infinity), -Infinity);
    all = all.filter((row) => timeOf(row[column]) === newest);
  }
  return all
    .map((row) => ({
      key: identity(row, chart.names),
      label: labelOf(row, chart.names),
      value: numberOf(row[chart.number]) ?? 0,
    }))
    .sort((a, b) => b.value - a.value || (a.key < b.key ? -1 : 1))
    .slice(0, count);
}

function identity(row: Row, names: string[]): string {
  return names.map((name) => canonical(row[name] ?? null)).join("|");
}

/** The stretch of time that a chart shows, where uPlot would show from `low` to `high`. */
export function shownTimes(times: number[], low: number, high: number): [number, number] {
  return times.length === 1 ? [low - ALONE_S, low + ALONE_S] : [low, high];
}

/** Which ticks of an axis of numbers have a label: where everything is counted in wholes, no half has one. */
export function labelled(lines: Line[], splits: number[]): boolean[] {
  const whole = lines.every((line) => line.values.every((value) => value === null || Number.isInteger(value)));
  return splits.map((split) => !whole || Number.isInteger(split));
}
