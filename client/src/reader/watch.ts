// Batches one after the other, for a loop or a callback, with what makes each count once it is handled.
//
// 1. A batch is handled when the next one is asked for, or when the callback is done with it. Only then its position is kept and
//    acknowledged: after a crash it comes again.
// 2. At most `queueBytes` wait for a slow reader; beyond that the subscription rests, and goes on from the last batch that waits.
import type { Behind, Position } from "./contract.js";
import type { ClientError } from "./errors.js";
import type { Keeping } from "./keeping.js";
import type { Question } from "./question.js";
import { quietly } from "./quietly.js";
import type { Manner, Reader, State, Subscription, Told } from "./subscription.js";

const ACK_MS = 1000; // the server writes each one down

/** What a watch needs of its client. */
export interface WatchHost {
  begin(reader: Reader): Promise<Subscription>;
  end(subscription: Subscription | null): void;
  /** Ends it for a while. */
  rest(subscription: Subscription): void;
  /** Goes on from its position. */
  goOn(subscription: Subscription): void;
  /** Without a subscription: what `begin` is going to ask for. */
  change(subscription: Subscription | null, question: Question): void;
  tell(fields: Record<string, unknown>): void;
  later(run: () => void, ms: number): () => void;
  keeping: Keeping | null;
  manner: Manner;
}

export class Watch<B extends Told> implements AsyncIterableIterator<B> {
  /** Resolves when it was closed; rejects when the server refuses it or the callback throws. */
  readonly done: Promise<void>;
  #handled: Position | null = null;
  #given: Position | null = null;
  #queue: [B, number][] = [];
  #bytes = 0;
  #resting = false;
  #over: Error | null | undefined; // null: closed; undefined: not yet
  #wanted: (() => void)[] = [];
  #acking: (() => void) | null = null;
  #subscription: Subscription | null = null;
  #settle!: { resolve: () => void; reject: (error: Error) => void };

  constructor(
    private readonly host: WatchHost,
    private readonly queueBytes: number,
    private readonly acknowledges: boolean,
    private readonly onMove: (() => void) | undefined,
    act: ((batch: B) => void | Promise<void>) | undefined,
  ) {
    this.done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.done.catch(() => {});
    const reader: Reader = { batch: (batch, bytes) => this.#take(batch as B, bytes), failed: (error) => this.#fail(error), moved: () => this.#moved() };
    void host.begin(reader).then(
      (subscription) => this.#begun(subscription),
      (error: ClientError) => this.#fail(error),
    );
    if (act) void this.#run(act);
  }

  /** The position of the last batch that was handled. */
  get position(): Position | null {
    return this.#handled;
  }

  get state(): State {
    return this.#resting ? "stalled" : (this.#subscription?.state ?? "connecting");
  }

  /** Milliseconds that the newest event took from the door to here; while stalled or cut off, growing. null: nobody said. */
  get lag(): number | null {
    return this.#subscription?.lagMs ?? null;
  }

  get behind(): Behind | null {
    return this.#subscription?.behind ?? null;
  }

  /** Asks for other rows on the same connection: a snapshot follows. What waits of the old question is given up. */
  changeFilter(question: Question): void {
    this.save();
    this.#handled = this.#given = null; // they lead on in the old question only
    this.#queue = [];
    this.#bytes = 0;
    this.#resting = false;
    this.host.change(this.#subscription, question);
  }

  /** Lets the server remember, under the subscription's name, that everything up to here is done; without one the last handled. */
  ack(position: Position | null = this.#handled): void {
    if (position !== null && this.#subscription) this.host.tell({ type: "ack", id: this.#subscription.id, position });
  }

  /** At most so many messages a second from now on; null: as they come. */
  pace(perSecond: number | null): void {
    this.host.manner.pace = perSecond ?? undefined;
    if (this.#subscription) this.host.tell({ type: "pace", id: this.#subscription.id, per_s: perSecond });
  }

  async next(): Promise<IteratorResult<B, undefined>> {
    if (this.#given !== null) this.#handle(this.#given);
    this.#given = null;
    while (this.#queue.length === 0) {
      if (this.#over) throw this.#over;
      if (this.#over === null) return { done: true, value: undefined };
      await new Promise<void>((resolve) => this.#wanted.push(resolve));
    }
    const [batch, bytes] = this.#queue.shift()!;
    this.#bytes -= bytes;
    this.#given = batch.position;
    if (this.#resting && this.#bytes <= this.queueBytes / 2) this.#goOn();
    return { done: false, value: batch };
  }

  async return(): Promise<IteratorResult<B, undefined>> {
    this.close();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  close(): void {
    if (this.#over !== undefined) return;
    this.#queue = [];
    this.#acknowledge();
    this.host.end(this.#subscription);
    this.save();
    this.#end(null);
  }

  /** Writes down how far it has come, now. */
  save(): void {
    this.host.keeping?.save();
  }

  #begun(subscription: Subscription): void {
    this.#subscription = subscription;
    if (this.#over !== undefined) this.host.end(subscription);
  }

  async #run(act: (batch: B) => void | Promise<void>): Promise<void> {
    try {
      for (let given = await this.next(); !given.done; given = await this.next()) await act(given.value);
    } catch (error) {
      this.host.end(this.#subscription);
      this.#end(error as Error);
    }
  }

  #take(batch: B, bytes: number): void {
    this.#queue.push([batch, bytes]);
    this.#bytes += bytes;
    if (this.#bytes > this.queueBytes && this.#queue.length > 1 && !this.#resting) {
      this.#resting = true;
      this.host.rest(this.#subscription!);
      this.#moved();
    }
    this.#wake();
  }

  #moved(): void {
    quietly(() => this.onMove?.());
  }

  #goOn(): void {
    this.#resting = false;
    if (this.#over === undefined) this.host.goOn(this.#subscription!);
  }

  #handle(position: Position): void {
    this.#handled = position;
    this.host.keeping?.touch();
    if (this.acknowledges) this.#acking ??= this.host.later(() => this.#acknowledge(), ACK_MS);
  }

  #acknowledge(): void {
    if (!this.#acking) return;
    this.#acking();
    this.#acking = null;
    this.ack();
  }

  #fail(error: ClientError): void {
    this.#end(error.code === "closed" ? null : error);
  }

  #end(error: Error | null): void {
    if (this.#over !== undefined) return;
    this.#over = error;
    if (error) this.#settle.reject(error);
    else this.#settle.resolve();
    this.#wake();
  }

  #wake(): void {
    for (const resolve of this.#wanted.splice(0)) resolve();
  }
}
