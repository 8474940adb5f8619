// A Map of a view's rows that is kept current: it holds the rows of one position, and goes from batch to batch in one step.
//
// 1. Whoever looks sees whole batches only; a snapshot in parts replaces the rows when its last part is there.
// 2. What is kept in a store are the rows of one position, with that position.
// 3. A listener that throws harms neither the rows nor the other listeners.
import type { Batch, Behind, Json, Position, Row } from "./contract.js";
import type { ClientError } from "./errors.js";
import type { Keeping, Known } from "./keeping.js";
import type { Question } from "./question.js";
import { quietly } from "./quietly.js";
import { keyOf } from "./row-key.js";
import type { Reader, State, Subscription } from "./subscription.js";

/** The value of a single key column, or an object of all of them. */
export type RowKey = Json;
export type Listener<R extends Row> = (batch: Batch<R> | null, live: Live<R>) => void;

/** What a live view needs of its client. */
export interface LiveHost {
  begin(reader: Reader, known: Known | null): Subscription;
  end(subscription: Subscription | null): void;
  /** Without a subscription: what `begin` is going to ask for. */
  change(subscription: Subscription | null, question: Question): void;
  /** The view's key columns, as the server has them now. Asks until it is told or refused. */
  key(): Promise<string[]>;
  keeping(known: () => Known | null): Keeping | null;
  entryName(question: Question): string;
}

export class Live<R extends Row = Row> implements ReadonlyMap<RowKey, R> {
  /** Resolves when the rows are those that the server has; rejects when it refuses them. */
  readonly ready: Promise<Live<R>>;
  /** Why there is nothing more to come, or null. */
  error: ClientError | null = null;
  #rows = new Map<string, R>();
  #position: Position | null = null;
  #key: readonly string[] = [];
  #learning = true; // the key: batches wait meanwhile, and the rows are read by the old one
  #keysAsked = 0;
  #waiting: Batch[] = [];
  #changing = false;
  #closed = false;
  #subscription: Subscription | null = null;
  #settle!: { resolve: (live: Live<R>) => void; reject: (error: Error) => void };
  readonly #keeping: Keeping | null;
  readonly #listeners = new Set<Listener<R>>();

  constructor(
    private readonly host: LiveHost,
    key: readonly string[] | undefined,
  ) {
    this.ready = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.ready.catch(() => {}); // who does not ask for it does not have to catch it
    this.#keeping = host.keeping(() => this.#known());
    void this.#start(key);
  }

  /** The position of the rows. */
  get position(): Position | null {
    return this.#position;
  }

  get state(): State {
    return this.#subscription?.state ?? "connecting";
  }

  /** Milliseconds that the newest event took from the door to here; while stalled or cut off, growing. null: nobody said. */
  get lag(): number | null {
    return this.#subscription?.lagMs ?? null;
  }

  /** While `stalled`: how far behind the server is with telling. */
  get behind(): Behind | null {
    return this.#subscription?.behind ?? null;
  }

  /** Calls back after each batch, and with null when only the state or the position is another one. Returns what ends that. */
  subscribe(listener: Listener<R>): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** Asks for other rows on the same connection; the old ones stay until the new ones are here. */
  changeFilter(question: Question): void {
    if (this.#closed) return;
    this.save();
    this.error = null;
    this.#keeping?.rename(this.host.entryName(question));
    this.#changing = true;
    this.#waiting = [];
    this.#keysAsked++; // an answer that is under way would be for them
    this.host.change(this.#subscription, question);
  }

  /** Writes down what is known, now. */
  save(): void {
    this.#keeping?.save();
  }

  /** The rows stay as they are. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.save();
    this.host.end(this.#subscription);
  }

  // As a Map

  get size(): number {
    return this.#rows.size;
  }

  get(key: RowKey): R | undefined {
    return this.#rows.get(this.#text(key));
  }

  has(key: RowKey): boolean {
    return this.#rows.has(this.#text(key));
  }

  values(): MapIterator<R> {
    return this.#rows.values();
  }

  *keys(): MapIterator<RowKey> {
    for (const row of this.#rows.values()) yield this.keyOf(row);
  }

  *entries(): MapIterator<[RowKey, R]> {
    for (const row of this.#rows.values()) yield [this.keyOf(row), row];
  }

  [Symbol.iterator](): MapIterator<[RowKey, R]> {
    return this.entries();
  }

  forEach(act: (row: R, key: RowKey, live: ReadonlyMap<RowKey, R>) => void): void {
    for (const [key, row] of this.entries()) act(row, key, this);
  }

  /** The key of a row or of a delete, as `get` takes it. */
  keyOf(row: Row): RowKey {
    const key = this.#key;
    return key.length === 1 ? (row[key[0]!] ?? null) : Object.fromEntries(key.map((name) => [name, row[name] ?? null]));
  }

  // Inside

  async #start(key: readonly string[] | undefined): Promise<void> {
    const known = (await this.#keeping?.load()) ?? null;
    if (this.#closed) return;
    const recalled = known?.rows && known.key ? known : null;
    const told = recalled?.key ?? key;
    this.#learning = !told;
    this.#key = told ?? [];
    if (recalled) {
      this.#position = recalled.position;
      for (const row of recalled.rows!) this.#rows.set(keyOf(row, this.#key), row as R);
      const upserts = recalled.rows as R[];
      this.#tell({ name: "", position: recalled.position, snapshot: true, upserts, deletes: [], reset: null, accepted: null });
    }
    const reader = { batch: (batch: unknown) => this.#take(batch as Batch), failed: (error: ClientError) => this.#fail(error), moved: () => this.#moved() };
    this.#subscription = this.host.begin(reader, recalled);
  }

  #take(batch: Batch): void {
    this.#waiting.push(batch);
    if (batch.reset !== null) this.#learning = true; // it was built anew, and may have another key
    if (!this.#learning) this.#apply();
    else if (batch.snapshot) void this.#learnKey();
  }

  /** Each snapshot asks, and the last answer counts. */
  async #learnKey(): Promise<void> {
    const asked = ++this.#keysAsked;
    try {
      const key = await this.host.key();
      if (asked !== this.#keysAsked || this.#closed) return; // a later one is under way
      this.#key = key;
      this.#learning = false;
      this.#apply();
    } catch (error) {
      if (!this.#closed) this.#fail(error as ClientError);
    }
  }

  #apply(): void {
    for (const batch of this.#waiting.splice(0)) {
      if (batch.snapshot) {
        this.#rows = new Map();
        this.#changing = false;
      }
      for (const row of batch.deletes) this.#rows.delete(keyOf(row, this.#key));
      for (const row of batch.upserts) this.#rows.set(keyOf(row, this.#key), row as R); // a key in both lists ends up as the upsert
      this.#position = batch.position;
      this.#keeping?.touch();
      this.#tell(batch as Batch<R>);
      this.#settle.resolve(this);
    }
  }

  #moved(): void {
    const { position = null, state } = this.#subscription ?? {};
    const isLevel = this.#waiting.length === 0 && !this.#changing && this.#position !== null;
    if (isLevel && position !== null && position !== this.#position) {
      this.#position = position;
      this.#keeping?.touch();
    }
    if (isLevel && state === "live") this.#settle.resolve(this);
    this.#tell(null);
  }

  #fail(error: ClientError): void {
    this.error = error;
    this.host.end(this.#subscription);
    if (error.code !== "closed") this.#keeping?.forget(); // what one may not read is not kept either
    this.#settle.reject(error);
    this.#tell(null);
  }

  #tell(batch: Batch<R> | null): void {
    for (const listener of [...this.#listeners]) quietly(() => listener(batch, this));
  }

  #known(): Known | null {
    if (this.#position === null || this.#changing || this.error) return null;
    return { position: this.#position, key: this.#key, rows: [...this.#rows.values()] };
  }

  #text(key: RowKey): string {
    const names = this.#key;
    return keyOf(names.length === 1 ? { [names[0]!]: key } : ((key ?? {}) as Row), names);
  }
}
