// What an answer of the door means for the batch that was sent; no input or output happens here.
//
// 1. A batch is settled only by an answer that proves to come from the door: a page of a hotel's network settles nothing.
// 2. Whatever is not settled is sent again, made smaller, numbered anew, or stops the producer; nothing is dropped.
// 3. An answer that leaves open whether the batch was taken makes it doubtful: then its events stay under its number.
import { askedMs } from "../backoff.js";
import type { Receipt } from "./batch.js";
import { ProducerError } from "./errors.js";

export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly body: string;
}

export type Verdict =
  | { kind: "settled"; receipt: Receipt; rejected: ReadonlyMap<number, ProducerError> }
  /** `loud`: it will not pass by itself, so somebody must be told. */
  | { kind: "again"; error: ProducerError; doubtful: boolean; loud: boolean; afterMs: number | undefined }
  | { kind: "smaller"; error: ProducerError }
  /** The server does not know what came before this number: it forgot this producer, or has another log. */
  | { kind: "forgotten"; error: ProducerError; expected: number }
  | { kind: "fenced"; error: ProducerError };

interface Rejection {
  index: number;
  reason: string;
  detail: string;
}

export function judge(reply: Reply, nowMs: number): Verdict {
  const body = object(reply.body);
  const error = object(body.error);
  const { status } = reply;
  const ack = reply.headers.get("Penstock-Ack");
  if ((status === 200 || status === 422) && Array.isArray(body.rejected) && typeof body.ack === "string") {
    return settled(body.ack, body.rejected as Rejection[], Number(body.shed ?? 0));
  }
  if (status === 204 && ack) {
    return { kind: "settled", receipt: { ack, repeated: true, shed: 0 }, rejected: new Map() };
  }
  if (status === 403 && error.code === "producer_fenced") {
    return { kind: "fenced", error: new ProducerError("producer_fenced", String(error.message)) };
  }
  const told = new ProducerError("refused", error.code ? `${status} ${error.code}: ${error.message}` : stranger(reply));
  if (status === 409 && error.code === "sequence_gap") {
    return { kind: "forgotten", error: told, expected: Number(reply.headers.get("Producer-Expected-Seq") ?? 0) };
  }
  if (status === 413) return { kind: "smaller", error: told };
  const passing = status === 408 || status === 425 || status === 429 || status >= 500;
  const doubtful = status >= 500 || status < 400;
  return { kind: "again", error: told, doubtful, loud: !passing, afterMs: askedMs(reply.headers, nowMs) };
}

function settled(ack: string, rejections: readonly Rejection[], shed: number): Verdict {
  const rejected = new Map<number, ProducerError>();
  for (const { index, reason, detail } of rejections) {
    rejected.set(index, new ProducerError("event_rejected", `${reason}: ${detail}`, reason));
  }
  return { kind: "settled", receipt: { ack, repeated: false, shed }, rejected };
}

function stranger(reply: Reply): string {
  return `the answer ${reply.status} does not come from a Penstock stream; see that the address is right and that nothing stands between`;
}

function object(value: unknown): Record<string, unknown> {
  try {
    const found: unknown = typeof value === "string" ? JSON.parse(value) : value;
    return typeof found === "object" && found !== null ? (found as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
