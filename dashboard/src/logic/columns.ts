// Says what a column is for, from its Spark type: a time, a number, a name, or something only a table can show.
import type { Column, Json } from "../server/documents";

const MASK = "***";

export type Role = "window" | "time" | "number" | "name" | "other";

export function roleOf(column: Column): Role {
  if (column.private) return "other"; // no chart may name its lines after people
  const type = column.type.toLowerCase();
  if (/^struct<start:timestamp(_ntz)?,end:timestamp(_ntz)?>$/.test(type)) return "window";
  if (/^(timestamp|timestamp_ntz|date)$/.test(type)) return "time";
  if (/^(tinyint|smallint|int|bigint|float|double)$/.test(type) || type.startsWith("decimal")) return "number";
  if (/^(string|boolean)$/.test(type) || /^(var)?char\(/.test(type)) return "name";
  return "other";
}

/** What of a value may be shown. */
export function shownOf(column: Column, value: Json | undefined): Json {
  return column.private && value !== null && value !== undefined ? MASK : value ?? null;
}

/** The number in a cell: decimals and integers beyond 2^53 arrive as strings. */
export function numberOf(value: Json | undefined): number | null {
  if (typeof value === "number") return value;
  if (typeof value !== "string" || value === "") return null;
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}

/** The moment in a cell, in milliseconds since 1970; of a window, its start. */
export function timeOf(value: Json | undefined): number | null {
  const text = isWindow(value) ? value.start : value;
  if (typeof text !== "string") return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}

export function isWindow(value: Json | undefined): value is { start: string; end: string } {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) &&
    typeof value["start"] === "string" && typeof value["end"] === "string"
  );
}
