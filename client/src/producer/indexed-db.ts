// Keeps what is unsent in IndexedDB, where it outlives the page: each tab has a slot of its own, held by a Web Lock.
//
// Two tabs never share a sequence: a slot has its own producer id, and the lock ends with the tab, however it ends. What a closed
// tab left in its slot is sent by the next tab that takes it; `orphans` names those that nobody holds.
import type { Numbered } from "./batch.js";
import { ProducerError } from "./errors.js";
import { type Changes, type Found, newId, raised, type Store } from "./store.js";

interface Meta {
  slot: number;
  producer: string;
  epoch: number;
  batch: Numbered | null;
}

interface EventRow {
  slot: number;
  n: number;
  line: string;
}

const MOST_SLOTS = 1000;

export class IndexedDbStore implements Store {
  readonly lasting = true;
  #db: IDBDatabase | null = null;
  #slot = -1;
  #release: () => void = () => {};

  /** Without `slot`, the first that no other tab holds. */
  constructor(
    private readonly name: string,
    private readonly slot?: number,
  ) {}

  /** Slots with something in them that no tab holds now. */
  async orphans(): Promise<number[]> {
    const used = await asked(this.#opened.transaction("events").objectStore("events").getAllKeys());
    const slots = new Set((used as [number, number][]).map(([slot]) => slot));
    const held = new Set(((await navigator.locks.query()).held ?? []).map((lock) => lock.name));
    return [...slots].filter((slot) => !held.has(this.#lock(slot)));
  }

  async open(nowMs: number): Promise<Found> {
    this.#slot = await this.#take();
    try {
      this.#db = await opened(this.name);
      const work = this.#opened.transaction(["meta", "events"], "readwrite", { durability: "strict" });
      const done = ended(work);
      const old = (await asked(work.objectStore("meta").get(this.#slot))) as Meta | undefined;
      const events = (await asked(work.objectStore("events").getAll(this.#range()))) as EventRow[];
      const producer = old?.producer ?? newId();
      const epoch = raised(old?.epoch ?? 0, nowMs);
      const batch = old?.batch ? { ...old.batch, doubtful: true } : null;
      work.objectStore("meta").put({ slot: this.#slot, producer, epoch, batch } satisfies Meta);
      await done;
      this.#producer = producer;
      return { producer, epoch, batch, events: events.map(({ n, line }) => [n, line] as const) };
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  async write({ events, state }: Changes): Promise<void> {
    const work = this.#opened.transaction(["meta", "events"], "readwrite", { durability: "strict" });
    const done = ended(work);
    const queue = work.objectStore("events");
    for (const [n, line] of events) queue.add({ slot: this.#slot, n, line } satisfies EventRow);
    if (state) {
      queue.delete(this.#range(state.settled));
      const { epoch, batch } = state;
      work.objectStore("meta").put({ slot: this.#slot, producer: this.#producer, epoch, batch } satisfies Meta);
    }
    await done;
  }

  async close(): Promise<void> {
    this.#db?.close();
    this.#db = null;
    this.#release();
  }

  #producer = "";

  get #opened(): IDBDatabase {
    if (!this.#db) throw new ProducerError("producer_closed", "this producer is closed");
    return this.#db;
  }

  #range(last = Infinity): IDBKeyRange {
    return IDBKeyRange.bound([this.#slot, -Infinity], [this.#slot, last]);
  }

  #lock(slot: number): string {
    return `${this.name}#${slot}`;
  }

  async #take(): Promise<number> {
    const slots = this.slot === undefined ? Array.from({ length: MOST_SLOTS }, (_, slot) => slot) : [this.slot];
    for (const slot of slots) {
      if (await this.#held(slot)) return slot;
    }
    throw new ProducerError("folder_held", `other tabs hold every slot of '${this.name}'`);
  }

  #held(slot: number): Promise<boolean> {
    return new Promise((resolve, reject) => {
      navigator.locks
        .request(this.#lock(slot), { ifAvailable: true }, (lock) => {
          resolve(lock !== null);
          return lock ? new Promise<void>((release) => (this.#release = release)) : undefined;
        })
        .catch(reject);
    });
  }
}

function opened(name: string): Promise<IDBDatabase> {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("meta", { keyPath: "slot" });
    request.result.createObjectStore("events", { keyPath: ["slot", "n"] });
  };
  return asked(request);
}

function asked<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(failed(request.error));
  });
}

function ended(work: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    work.oncomplete = () => resolve();
    work.onabort = work.onerror = () => reject(failed(work.error));
  });
}

function failed(error: DOMException | null): ProducerError {
  return new ProducerError("store_failed", `IndexedDB: ${error?.message || error?.name || "the transaction was given up"}`);
}
