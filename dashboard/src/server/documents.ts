// The documents of the server that the page reads beside its views, as types; nothing else of the server is known here.
import type { Position, Problem } from "./client";

export type { Json, Problem, Row } from "./client";

export interface Column {
  name: string;
  /** A Spark simpleString type: `bigint`, `struct<start:timestamp,end:timestamp>`, ... */
  type: string;
  /** It has the name of a personal field: the page shows that there is a value, not which. */
  private?: boolean;
}

export interface Health {
  state: string;
  error: Problem | null;
}

export interface View {
  view: string;
  doc?: string | null;
  key: string[];
  columns: Column[];
  order_by: string[] | null;
  limit: number | null;
  keep?: string | null;
  class?: string;
  how?: string | null;
  rows?: number | null;
  position?: Position | null;
  flow?: Health | null;
}

/** Null where each reader sees its own rows only: how many there are in all is not told. */
export type Count = number | null;

export interface Stream {
  stream: string;
  kind: string;
  totals: { accepted: Count; duplicates: Count; dead: Count; shed: Count; late: Count };
  rates: { accepted: number };
}

export interface Flow extends Health {
  flow: string;
  batch_ms?: number | null;
  rate?: number | null;
  lag_events?: number | null;
  complete?: string | null;
  skew_s?: number | null;
  held_by?: string | null;
}

/** Why senders wait or events are dropped; `because` holds lags, a full room, or a stream that sheds. */
export interface Pressure {
  state: string;
  because: {
    stream?: string;
    view?: string;
    lag_events?: number;
    lag_s?: number;
    max_lag?: string;
    retry_after_s?: number;
    room?: string;
    shed?: string;
    part?: number;
  }[];
  hint: string | null;
}

/** A source that is read into a stream or a table. */
export interface Pull {
  stream: string;
  url: string;
  state: string;
  error: string | null;
}

export interface Status {
  app: string;
  version?: string;
  uptime_s?: number;
  processes?: Record<string, { state: string; pid?: number; restarts?: number }>;
  streams: Stream[];
  views: View[];
  flows: Flow[];
  pressure?: Pressure;
  pulls?: Pull[];
}

export interface GraphNode {
  name: string;
  kind: string;
  doc?: string | null;
  state?: string | null;
}

export interface Graph {
  app: string;
  nodes: GraphNode[];
  edges: { from: string; to: string; grouping?: string | null; parallelism?: number | null }[];
}
