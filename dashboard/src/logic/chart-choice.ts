// Chooses how a view is drawn, from its key and its columns alone, so that any view of any app gets a fitting chart.
import type { Column, View } from "../server/documents";
import { roleOf, type Role } from "./columns";

export interface LineChart {
  kind: "lines";
  time: string;
  names: string[];
  number: string;
}

export interface BarChart {
  kind: "bars";
  /** Where the key holds a time, only its newest rows are drawn. */
  time: string | null;
  names: string[];
  number: string;
}

export type Chart = LineChart | BarChart;

/** The charts that fit, best first; empty when only the table does. */
export function chartsOf(view: View): Chart[] {
  const roles = new Map<string, Role>(view.columns.map((column) => [column.name, roleOf(column)]));
  const isTime = (name: string) => roles.get(name) === "window" || roles.get(name) === "time";
  const number = numberColumn(view, roles);
  if (!number) return [];
  const time = view.key.find(isTime) ?? null;
  const names = view.key.filter((name) => !isTime(name));
  const bars: BarChart = { kind: "bars", time, names, number };
  if (time) return [{ kind: "lines", time, names, number }, ...(names.length > 0 ? [bars] : [])];
  if (names.length > 0) return [bars];
  return [];
}

/** What the rows are ranked by, else the first number that is not part of the key. */
function numberColumn(view: View, roles: Map<string, Role>): string | null {
  const ranked = (view.order_by ?? []).map((term) => term.replace(/^[-+]/, ""));
  const candidates = [...ranked, ...view.columns.map((column: Column) => column.name)];
  return candidates.find((name) => roles.get(name) === "number" && !view.key.includes(name)) ?? null;
}
