// Where a producer keeps what is unsent: the contract of every store, and the one in memory.
import type { Numbered } from "./batch.js";

export interface State {
  /** All events up to this one are done with. */
  readonly settled: number;
  readonly batch: Numbered | null;
  readonly epoch: number;
}

/** What a producer starts with. */
export interface Found {
  readonly producer: string;
  readonly epoch: number;
  readonly events: readonly (readonly [n: number, line: string])[];
  readonly batch: Numbered | null;
}

export interface Changes {
  readonly events: readonly (readonly [n: number, line: string])[];
  readonly state: State | null;
}

/**
 * 1. `write` is all or nothing, and durable when it resolves. It is not called again before it has ended.
 * 2. `open` takes the store for this producer alone, as long as its page or process lives, and raises the epoch durably.
 * 3. A batch that `open` finds is doubtful.
 */
export interface Store {
  /** Whether what it holds outlives the page or process. */
  readonly lasting: boolean;
  open(nowMs: number): Promise<Found>;
  write(changes: Changes): Promise<void>;
  close(): Promise<void>;
}

/** The next epoch: higher than any before, and hardly that of a copy of this store, because it is the time. */
export function raised(epoch: number, nowMs: number): number {
  return Math.max(epoch + 1, Math.floor(nowMs));
}

/** A producer id. `crypto.randomUUID` is not there on pages without TLS. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class MemoryStore implements Store {
  readonly lasting = false;

  async open(nowMs: number): Promise<Found> {
    return { producer: newId(), epoch: raised(0, nowMs), events: [], batch: null };
  }

  async write(): Promise<void> {}
  async close(): Promise<void> {}
}
