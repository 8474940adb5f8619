// Turns the key of a row into one text, the same for an upsert and a delete, so that rows can be kept in a Map.
import type { Json, Row } from "./contract.js";

export function keyOf(row: Row, key: readonly string[]): string {
  return `{${key.map((name) => `${JSON.stringify(name)}:${canonical(row[name] ?? null)}`).join(",")}}`;
}

/** JSON with the names of objects in order: a window is the same key however its fields are arranged. */
export function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return keyOf(value, Object.keys(value).sort());
}
