// What a reader asks for, in the two forms in which the server takes it: a socket's message and an address.
import type { Json, Position } from "./contract.js";

export type Kind = "view" | "stream" | "channel";

export interface Target {
  readonly kind: Kind;
  readonly name: string;
  /** Whether it gives events, not rows. A channel may be of either. */
  readonly events: boolean;
}

/** Which rows; what is left out is the view's default. */
export interface Question {
  /** A condition in SQL over the columns. */
  where?: string | null;
  /** The values of the parameters in `where` (`:name`), never part of its text. */
  params?: Record<string, Json>;
  select?: string | readonly string[];
  orderBy?: string | readonly string[];
  /** `null` is all rows. */
  limit?: number | null;
}

export type Fields = Record<string, unknown>;

/** The fields of a `subscribe` message; those that are undefined do not go out. */
export function fieldsOf({ kind, name }: Target, { where, params, select, orderBy, limit }: Question): Fields {
  return { [kind]: name, where: where || undefined, params, select: select || undefined, order_by: orderBy || undefined, limit };
}

/** The same as query parameters. */
export function queryOf(asked: Question): Record<string, string | undefined> {
  const { where, params, select, orderBy, limit } = asked;
  return {
    where: where || undefined,
    params: params && JSON.stringify(params),
    select: select && String(select),
    order_by: orderBy && String(orderBy),
    limit: limit === undefined ? undefined : String(limit),
  };
}

export function pathOf({ kind, name }: Target): string {
  return `${kind}s/${encodeURIComponent(name)}`;
}

/** The address of a path below `base`, which may have a prefix of its own. */
export function address(base: string, path: string, query: Record<string, string | undefined> = {}): string {
  const found = new URL(path, base.endsWith("/") ? base : `${base}/`);
  for (const [name, value] of Object.entries(query)) if (value !== undefined) found.searchParams.set(name, value);
  return found.href;
}

/** Where a subscription begins: a position that was kept, or, of a stream, one of its ends. */
export type Since = Position | "start" | "end";
