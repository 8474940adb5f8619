// Sends events to one stream, each once, in the order of the calls. The entries `browser.ts` and `node.ts` say where it keeps them.
import type { Receipt } from "./batch.js";
import { ProducerError } from "./errors.js";
import { bytesOf, Outbox } from "./outbox.js";
import { type Doing, Sender } from "./sender.js";
import type { Store } from "./store.js";

export interface ProducerOptions {
  /** An API key, or a function that gives the one to use now. */
  key?: string | (() => string | Promise<string>);
  /** What waits at most, in events and in bytes of JSON. Default: 10,000 and 16 MiB. */
  queueEvents?: number;
  queueBytes?: number;
  /** When the queue is full, `send` waits (default) or rejects with `queue_full`. */
  full?: "wait" | "error";
  /** What is sent together at most. Default: 500 events, 1,000,000 bytes before compression. */
  batchEvents?: number;
  batchBytes?: number;
  /** How long the first event waits for company. Default: 20. */
  lingerMs?: number;
  /** gzip for more than 1 KiB, where there is a CompressionStream. Default: true. */
  compress?: boolean;
  /** How long one try may take. Default: 30,000. */
  timeoutMs?: number;
  /** The longest pause between two tries, unless the server asks for more. Default: 30,000. */
  backoffMostMs?: number;
  /** Called for every event that the server rejected, also for those of an earlier page or process. */
  onRejected?: (event: string, error: ProducerError) => void;
  /** Called when something is wrong that does not pass by itself. Default: console.warn. */
  onTrouble?: (error: ProducerError) => void;
  /** The device's clock, in milliseconds since 1970. */
  now?: () => number;
  random?: () => number;
}

export interface Status {
  readonly state: Doing;
  readonly unsentEvents: number;
  readonly unsentBytes: number;
  readonly error: ProducerError | null;
}

/** What the caller holds of one event. */
export interface Handle {
  /** Resolves when the server has the event; rejects when it rejected it, or when this producer ended before it was answered. */
  readonly answered: Promise<Receipt>;
}

const EVENT_BYTES = 1024 ** 2;

export class Producer {
  #closed = false;

  private constructor(
    private readonly outbox: Outbox,
    private readonly sender: Sender,
    private readonly store: Store,
    private readonly full: "wait" | "error",
  ) {}

  /** Open the store and begin to send what it holds. */
  static async over(store: Store, url: string, stream: string, options: ProducerOptions = {}): Promise<Producer> {
    const now = options.now ?? Date.now;
    const found = await store.open(now());
    const { queueEvents = 10_000, queueBytes = 16 * 1024 ** 2, batchEvents = 500, batchBytes = 1_000_000, lingerMs = 20 } = options;
    const outbox = new Outbox(found, { queueEvents, queueBytes, batchEvents, batchBytes, lingerMs }, store);
    const sender = new Sender(outbox, {
      url: `${url.replace(/\/+$/, "")}/streams/${encodeURIComponent(stream)}`,
      producer: found.producer,
      key: options.key,
      compress: options.compress ?? true,
      timeoutMs: options.timeoutMs ?? 30_000,
      backoffMostMs: options.backoffMostMs ?? 30_000,
      onRejected: options.onRejected,
      onTrouble: options.onTrouble ?? ((error) => console.warn(`penstock: ${error.message}`)),
      now,
      random: options.random ?? Math.random,
    });
    sender.start();
    return new Producer(outbox, sender, store, options.full ?? "wait");
  }

  /** Put an event (an object, or its JSON) into the queue. Resolves when it is kept; the handle says when the server has it. */
  async send(event: object | string): Promise<Handle> {
    const line = lineOf(event);
    const bytes = bytesOf(line);
    if (bytes > EVENT_BYTES) throw new ProducerError("too_large", `an event has at most ${EVENT_BYTES} bytes of JSON, not ${bytes}`);
    while (true) {
      if (this.outbox.ended) throw this.outbox.ended;
      if (!this.outbox.isFull(bytes)) break;
      if (this.full === "error") throw new ProducerError("queue_full", "the producer's queue is full; send again later");
      await this.outbox.change();
    }
    let put: Promise<void> | undefined;
    const answered = new Promise<Receipt>((resolve, reject) => {
      put = this.outbox.put(line, bytes, { resolve, reject });
    });
    answered.catch(() => {}); // whoever does not look at the answer must not be ended by it
    await put;
    return { answered };
  }

  /** Wait until the server has answered for all that was sent before; rejects with `unsent` when time is up. */
  async flush(timeoutMs?: number): Promise<void> {
    if (!(await this.outbox.drained(timeoutMs))) throw this.outbox.ended ?? this.#unsent();
  }

  get status(): Status {
    const { events, bytes } = this.outbox.unsent;
    const state = this.#closed && this.sender.doing !== "fenced" ? "closed" : this.sender.doing;
    return { state, unsentEvents: events, unsentBytes: bytes, error: this.sender.error };
  }

  /** Flush, then end. What is unsent then stays in the store; without one it is lost, and this rejects with `unsent`. */
  async close(timeoutMs = 30_000): Promise<void> {
    if (this.#closed) return;
    await this.outbox.drained(timeoutMs);
    this.#closed = true;
    const left = this.outbox.unsent.events ? this.#unsent() : null;
    this.outbox.end(left ?? new ProducerError("producer_closed", "this producer is closed"));
    await this.sender.stop();
    await this.outbox.idle();
    await this.store.close();
    if (left && !this.store.lasting) throw left;
  }

  /** Send once more what can be sent while the page goes away. */
  farewell(): void {
    this.sender.farewell();
  }

  #unsent(): ProducerError {
    const why = this.sender.error ? `: ${this.sender.error.message}` : "";
    const kept = this.store.lasting ? "they are kept and sent later" : "they are lost when this page or process ends";
    return new ProducerError("unsent", `${this.outbox.unsent.events} events were not answered in time (${kept})${why}`);
  }
}

function lineOf(event: object | string): string {
  try {
    const value: unknown = typeof event === "string" ? JSON.parse(event) : event;
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("it is no object");
    const line = JSON.stringify(value);
    if (!line.startsWith("{")) throw new Error("its JSON is no object");
    return line;
  } catch (error) {
    throw new ProducerError("bad_event", `this cannot be sent as an event: ${error instanceof Error ? error.message : error}`);
  }
}
