// Keeps entries in IndexedDB, which has room for more than localStorage and does not hold up the page.
import { ENTRIES_MOST, type Store } from "./store.js";

const TABLE = "entries";

interface Entry {
  name: string;
  at: number;
  text: string;
}

export class IndexedDbStore implements Store {
  #opened: Promise<IDBDatabase> | null = null;

  constructor(
    private readonly name = "penstock reader",
    private readonly now: () => number = Date.now,
  ) {}

  async get(name: string): Promise<string | null> {
    const found = await this.#work<Entry | undefined>("readonly", (entries) => entries.get(name));
    return typeof found?.text === "string" ? found.text : null;
  }

  async set(name: string, text: string): Promise<void> {
    await this.#work("readwrite", (entries) => {
      entries.put({ name, at: this.now(), text } satisfies Entry);
      const counted = entries.count();
      counted.onsuccess = () => thin(entries, counted.result - ENTRIES_MOST);
      return counted;
    });
  }

  async delete(name: string): Promise<void> {
    await this.#work("readwrite", (entries) => entries.delete(name));
  }

  async #work<T>(mode: IDBTransactionMode, act: (entries: IDBObjectStore) => IDBRequest): Promise<T> {
    const forget = (): void => void (this.#opened = null);
    this.#opened ??= open(this.name, forget).catch((error: unknown) => (forget(), Promise.reject(error)));
    const db = await this.#opened;
    return new Promise<T>((resolve, reject) => {
      const transaction = db.transaction(TABLE, mode);
      const request = act(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result as T);
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error ?? new Error("IndexedDB gave up"));
    });
  }
}

function thin(entries: IDBObjectStore, tooMany: number): void {
  if (tooMany <= 0) return;
  const oldest = entries.index("at").openKeyCursor();
  oldest.onsuccess = () => {
    const cursor = oldest.result;
    if (!cursor || tooMany-- <= 0) return;
    entries.delete(cursor.primaryKey);
    cursor.continue();
  };
}

function open(name: string, onClose: () => void): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "name" }).createIndex("at", "at");
    request.onsuccess = () => {
      request.result.onclose = onClose;
      request.result.onversionchange = () => (request.result.close(), onClose());
      resolve(request.result);
    };
    request.onerror = request.onblocked = () => reject(new Error("IndexedDB does not open"));
  });
}
