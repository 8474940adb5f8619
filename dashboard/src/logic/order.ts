// Sorts rows as the server does for `order_by`, so that the page shows the same top n.
import type { Column, Json, Row } from "../server/documents";
import { isWindow, numberOf, roleOf } from "./columns";

export type Compare = (a: Row, b: Row) => number;

/** `-name` is descending. Nulls come first ascending and last descending, as in Spark; equal rows follow their key. */
export function ordering(orderBy: string[], key: string[], columns: Column[]): Compare {
  const numeric = new Set(columns.filter((column) => roleOf(column) === "number").map((column) => column.name));
  const named = orderBy.map((term) => term.replace(/^[-+]/, ""));
  const terms = [...orderBy, ...key.filter((name) => !named.includes(name))].map((term) => ({
    name: term.replace(/^[-+]/, ""),
    sign: term.startsWith("-") ? -1 : 1,
  }));
  return (a, b) => {
    for (const { name, sign } of terms) {
      const order = compare(a[name] ?? null, b[name] ?? null, numeric.has(name));
      if (order !== 0) return sign * order;
    }
    return 0;
  };
}

function compare(a: Json, b: Json, numeric: boolean): number {
  if (a === null || b === null) return Number(a !== null) - Number(b !== null);
  if (numeric) return sign(numberOf(a) ?? -Infinity, numberOf(b) ?? -Infinity);
  if (isWindow(a) && isWindow(b)) return sign(a.start, b.start) || sign(a.end, b.end);
  if (typeof a === typeof b && typeof a !== "object" && typeof b !== "object") return sign(a, b);
  return sign(JSON.stringify(a), JSON.stringify(b));
}

function sign<T extends string | number | boolean>(a: T, b: T): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
