// The part of the wire contract that a reader needs, as types; nothing else of the server is known here.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Row = Record<string, Json>;
/** How far a view or a stream was read: opaque, and the same on every transport. */
export type Position = string;

export interface Problem {
  code: string;
  message: string;
  detail?: unknown;
  hint?: string | null;
}

/** How far the server is behind with telling this reader. */
export interface Behind {
  batches?: number;
  /** Of a stream, instead of batches. */
  events?: number;
  bytes?: number;
  seconds?: number;
}

export type Message =
  | { type: "snapshot"; position: Position; rows: Row[]; part?: number; parts?: number }
  | { type: "changes"; position: Position; upserts: Row[]; deletes: Row[]; accepted?: string }
  | { type: "events"; position: Position; events: Row[] }
  | { type: "position"; position: Position }
  | { type: "reset"; reason?: string }
  | { type: "stall"; behind?: Behind }
  | { type: "error"; error: Problem; to?: "ack" }
  | { type: "pong" };

/** One batch of a view's changes, all of it. A snapshot replaces whatever was there before; its `upserts` are all rows. */
export interface Batch<R = Row> {
  readonly name: string;
  /** Where to go on from, on any transport, once this batch is dealt with. */
  readonly position: Position;
  readonly snapshot: boolean;
  readonly upserts: readonly R[];
  /** Each an object of the key's columns. */
  readonly deletes: readonly Row[];
  /** Why changes could not lead here, if this is a snapshot that was not asked for. */
  readonly reset: string | null;
  /** When the newest event in it was taken at the door, as RFC 3339. */
  readonly accepted: string | null;
}

/** The next events of a stream. */
export interface EventBatch<E = Row> {
  readonly name: string;
  readonly position: Position;
  readonly events: readonly E[];
  /** Why events between the last batch and this one are not there any more. */
  readonly reset: string | null;
}
