// The queue of a producer: bounded, kept in a store, and cut into batches that keep their number.
//
// 1. There is at most one open batch: the first events of the queue, under one number. It is stored before it is sent.
// 2. An event leaves the queue only when the batch that holds it is settled.
// 3. What the caller was told is in the queue is in the store.
import type { Batch, Numbered, Receipt } from "./batch.js";
import type { ProducerError } from "./errors.js";
import { type Found, raised, type State, type Store } from "./store.js";

export interface Bounds {
  readonly queueEvents: number;
  readonly queueBytes: number;
  readonly batchEvents: number;
  readonly batchBytes: number;
  readonly lingerMs: number;
}

interface Entry {
  readonly n: number;
  readonly line: string;
  readonly bytes: number;
  readonly arrived: number;
  readonly answer: Answer | null;
}

/** The two ends of the promise that a caller holds. */
export interface Answer {
  resolve(receipt: Receipt): void;
  reject(error: ProducerError): void;
}

interface Waiting {
  readonly what: readonly [number, string] | State;
  done(error?: unknown): void;
}

/** By how much batches become larger again after one was too large: it costs one refused try in about 35. */
const GROWTH = 1.02;

const encoder = new TextEncoder();

export function bytesOf(line: string): number {
  return encoder.encode(line).length;
}

export class Outbox {
  #entries: Entry[];
  #events: number;
  #bytes = 0;
  #last: number;
  #settled: number;
  #batch: Numbered | null;
  #epoch: number;
  #batchBytes: number;
  #sequence = 0;
  #waiting: Waiting[] = [];
  #writing: Promise<void> | null = null;
  #wakers = new Set<() => void>();
  #hurry = 0;
  ended: ProducerError | null = null;

  constructor(
    found: Found,
    private readonly bounds: Bounds,
    private readonly store: Store,
  ) {
    this.#entries = found.events.map(([n, line]) => ({ n, line, bytes: bytesOf(line), arrived: 0, answer: null }));
    this.#events = this.#entries.length;
    for (const entry of this.#entries) this.#bytes += entry.bytes;
    this.#last = this.#entries.at(-1)?.n ?? 0;
    this.#settled = (this.#entries[0]?.n ?? 1) - 1;
    this.#batch = found.batch;
    this.#epoch = found.epoch;
    this.#batchBytes = bounds.batchBytes;
  }

  get epoch(): number {
    return this.#epoch;
  }

  get unsent(): { events: number; bytes: number } {
    return { events: this.#events, bytes: this.#bytes };
  }

  isFull(bytes: number): boolean {
    const { queueEvents, queueBytes } = this.bounds;
    return this.#events > 0 && (this.#events >= queueEvents || this.#bytes + bytes > queueBytes);
  }

  /** Resolves when the event is stored; rejects when it could not be, and then it is not in the queue. */
  async put(line: string, bytes: number, answer: Answer): Promise<void> {
    this.#events += 1;
    this.#bytes += bytes;
    this.#last += 1;
    const entry: Entry = { n: this.#last, line, bytes, arrived: performance.now(), answer };
    try {
      await this.#store([entry.n, line], () => {
        this.#entries.push(entry);
        if (this.ended) answer.reject(this.ended);
      });
    } catch (error) {
      this.#leave([entry]);
      throw error;
    }
    this.#wake();
  }

  /** Wait until something has changed here, or for so long. */
  change(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const waker = (): void => {
        clearTimeout(timer);
        this.#wakers.delete(waker);
        resolve();
      };
      this.#wakers.add(waker);
      if (ms !== undefined) timer = setTimeout(waker, ms);
    });
  }

  /** Until all that was put before is settled; false when `ms` were not enough or it has ended. */
  async drained(ms?: number): Promise<boolean> {
    const last = this.#last;
    const deadline = ms === undefined ? Infinity : performance.now() + ms;
    this.#hurry += 1;
    this.#wake();
    try {
      while (this.#behind < last) {
        const left = deadline - performance.now();
        if (this.ended || left <= 0) return false;
        await this.change(left === Infinity ? undefined : left);
      }
      return true;
    } finally {
      this.#hurry -= 1;
    }
  }

  end(reason: ProducerError): void {
    if (this.ended) return;
    this.ended = reason;
    for (const entry of this.#entries) entry.answer?.reject(reason);
    this.#wake();
  }

  /** Wait for the batch that comes next; null when it is over. Throws when the store does not take its number. */
  async nextBatch(): Promise<Batch | null> {
    while (!this.ended && !this.#batch) {
      const ms = this.#waitMs();
      if (ms === 0) return this.#freeze(this.#cut());
      await this.change(ms);
    }
    return this.ended || !this.#batch ? null : this.#filled(this.#batch);
  }

  /**
   * What a page may still send in its last moment, when nothing can be stored any more: the open batch; without a store that lasts,
   * else all that waits, up to so many bytes. Only one batch, because two requests could arrive in the wrong order.
   */
  lastBatch(bytes: number): Batch | null {
    if (this.ended) return null;
    if (!this.#batch && !this.store.lasting && this.#entries.length) {
      this.#batch = { ...this.#cut(bytes), doubtful: true };
      this.#sequence = this.#batch.sequence + 1;
    }
    return this.#batch ? this.#filled(this.#batch) : null;
  }

  /** A try of the open batch may have been taken. Nothing is written: one that is found in a store is doubtful anyway. */
  doubt(): void {
    this.#batch = { ...this.#open, doubtful: true };
  }

  /** No try of the open batch was taken. */
  trust(): void {
    this.#batch = { ...this.#open, doubtful: false };
  }

  /** The open batch with half of its events, under the same number; later ones are made hardly larger. */
  async shrink(): Promise<void> {
    const half = { ...this.#open, last: Math.floor((this.#open.first + this.#open.last) / 2) };
    this.#batchBytes = this.#filled(half).lines.reduce((sum, line) => sum + bytesOf(line) + 1, 0);
    await this.#freeze(half);
  }

  /** The open batch as the first of a new epoch. */
  async renumber(nowMs: number): Promise<void> {
    this.#epoch = raised(this.#epoch, nowMs);
    await this.#freeze({ ...this.#open, epoch: this.#epoch, sequence: 0, doubtful: false });
  }

  /** The open batch is done with; `rejected` by the index of the event. */
  settle(receipt: Receipt, rejected: ReadonlyMap<number, ProducerError>): void {
    this.#batchBytes = Math.min(this.bounds.batchBytes, Math.floor(this.#batchBytes * GROWTH) + 1);
    this.#close().forEach(({ answer }, index) => {
      const error = rejected.get(index);
      if (error) answer?.reject(error);
      else answer?.resolve(receipt);
    });
  }

  /** The open batch is one event that the server will never take; its number goes to the next one. */
  refuse(error: ProducerError): void {
    if (this.#open.epoch === this.#epoch) this.#sequence = this.#open.sequence;
    for (const { answer } of this.#close()) answer?.reject(error);
  }

  /** Write what waits. */
  async idle(): Promise<void> {
    while (this.#writing) await this.#writing;
  }

  get #open(): Numbered {
    if (!this.#batch) throw new Error("no batch is open");
    return this.#batch;
  }

  /** All events up to this one have left; one that could not be stored has no entry. */
  get #behind(): number {
    return this.#events ? (this.#entries[0]?.n ?? this.#settled + 1) - 1 : this.#last;
  }

  #waitMs(): number | undefined {
    const first = this.#entries[0];
    if (!first) return undefined;
    const { batchEvents, lingerMs } = this.bounds;
    if (this.#hurry || this.#entries.length >= batchEvents || this.#bytes >= this.#batchBytes) return 0;
    return Math.max(0, first.arrived + lingerMs - performance.now());
  }

  #cut(most = this.#batchBytes): Numbered {
    const first = this.#entries[0]?.n ?? 0;
    let [bytes, last] = [0, 0];
    for (const entry of this.#entries.slice(0, this.bounds.batchEvents)) {
      bytes += entry.bytes + 1;
      if (last && bytes > most) break;
      last = entry.n;
    }
    return { epoch: this.#epoch, sequence: this.#sequence, first, last, doubtful: false };
  }

  #filled(number: Numbered): Batch {
    return { number, lines: this.#within(number).map((entry) => entry.line) };
  }

  #within(number: Numbered): Entry[] {
    const end = this.#entries.findIndex((entry) => entry.n > number.last);
    return this.#entries.slice(0, end < 0 ? undefined : end);
  }

  /** Make the number the open batch, in the store before in memory. */
  async #freeze(number: Numbered): Promise<Batch> {
    await this.#store({ settled: this.#settled, batch: number, epoch: this.#epoch }, () => {});
    this.#batch = number;
    if (number.epoch === this.#epoch) this.#sequence = number.sequence + 1;
    return this.#filled(number);
  }

  #close(): Entry[] {
    const done = this.#within(this.#open);
    this.#entries.splice(0, done.length);
    this.#settled = this.#open.last;
    this.#batch = null;
    this.#leave(done);
    if (!this.#entries.length) {
      // else it is written with the next batch's number
      this.#store({ settled: this.#settled, batch: null, epoch: this.#epoch }, () => {}).catch(() => {});
    }
    return done;
  }

  #leave(entries: readonly Entry[]): void {
    this.#events -= entries.length;
    for (const entry of entries) this.#bytes -= entry.bytes;
    this.#wake();
  }

  #wake(): void {
    for (const waker of [...this.#wakers]) waker();
  }

  /** Have something written; whatever waits when a write ends goes into the next one, in order. */
  #store(what: Waiting["what"], then: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({
        what,
        done: (error) => {
          if (error !== undefined) return reject(error);
          then();
          resolve();
        },
      });
      this.#writing ??= this.#write();
    });
  }

  async #write(): Promise<void> {
    await Promise.resolve(); // so that what is put in the same turn is written together
    while (this.#waiting.length) {
      const group = this.#waiting.splice(0);
      const events = group.flatMap(({ what }) => ("settled" in what ? [] : [what]));
      const state = group.reduce<State | null>((last, { what }) => ("settled" in what ? what : last), null);
      let failure: unknown;
      try {
        await this.store.write({ events, state });
      } catch (error) {
        failure = error ?? new Error("the store failed");
      }
      for (const { done } of group) done(failure);
    }
    this.#writing = null; // in the same step in which nothing was found waiting
  }
}
