// Decides what the page asks the server for: the table's top n, and the bounded history that a line chart draws.
import type { Question } from "../server/client";
import type { Row, View } from "../server/documents";
import { roleOf } from "./columns";
import type { LineChart } from "./chart-choice";

/** A page is for looking: more rows than this in one table help nobody and cost every browser. */
export const TABLE_ROWS = 200;
export const LINES = 5;
const HISTORY_POINTS = 180;

/** The order in which a view's rows are shown: its own, else newest first, else by key. */
export function orderOf(view: View): string[] {
  if (view.order_by && view.order_by.length > 0) return view.order_by;
  const types = new Map(view.columns.map((column) => [column.name, roleOf(column)]));
  const descends = (name: string) => types.get(name) === "window" || types.get(name) === "time";
  return view.key.map((name) => (descends(name) ? `-${name}` : name));
}

/** The view's own defaults are spelled out: rows that were kept answer exactly this, also when the app's defaults have changed since. */
export function tableQuestion(view: View): Question {
  if (view.limit === null || view.limit > TABLE_ROWS) return { orderBy: orderOf(view), limit: TABLE_ROWS };
  return { orderBy: view.order_by?.length ? view.order_by : view.key, limit: view.limit };
}

/** What the page only shows as stars it does not leave behind in the browser either. */
export function mayBeKept(view: View): boolean {
  return !view.columns.some((column) => column.private);
}

/** The history of the leading names; with no names in the key, of the view itself. */
export function historyQuestion(chart: LineChart, leaders: Row[]): Question {
  const lines = Math.max(1, chart.names.length === 0 ? 1 : leaders.length);
  const bounds = { orderBy: [`-${chart.time}`, ...chart.names], limit: HISTORY_POINTS * lines };
  return chart.names.length === 0 ? bounds : { where: leaders.map((row) => predicate(row, chart.names)).join(" OR "), ...bounds };
}

function predicate(row: Row, names: string[]): string {
  const terms = names.map((name) => {
    const value = row[name] ?? null;
    return value === null ? `${quoted(name)} IS NULL` : `${quoted(name)} = ${literal(value)}`;
  });
  return terms.length === 1 ? terms[0]! : `(${terms.join(" AND ")})`;
}

function quoted(name: string): string {
  return /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? name : `\`${name.replaceAll("`", "``")}\``;
}

function literal(value: unknown): string {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return `'${String(value).replaceAll("'", "''")}'`;
}
