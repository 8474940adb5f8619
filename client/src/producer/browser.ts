// The producer of a page: it keeps what is unsent in IndexedDB, so that a closed tab or a dead network loses nothing.
import { IndexedDbStore } from "./indexed-db.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { MemoryStore } from "./store.js";

export type { Receipt } from "./batch.js";
export { isRejection, ProducerError } from "./errors.js";
export type { Handle, ProducerOptions, Status } from "./producer.js";
export { Producer } from "./producer.js";

export interface BrowserOptions extends ProducerOptions {
  /** Where unsent events are kept. `indexeddb` (default) needs Web Locks too; where either is missing it is `memory`. */
  keep?: "indexeddb" | "memory";
  /** Whether a page that goes away sends its last batch once more, with a request that outlives it. Default: true. */
  farewell?: boolean;
}

/** Open a producer for one stream. What closed tabs have left is sent too. */
export async function openProducer(url: string, stream: string, options: BrowserOptions = {}): Promise<Producer> {
  const lasting = options.keep !== "memory" && typeof indexedDB !== "undefined" && typeof navigator.locks !== "undefined";
  const name = `penstock ${new URL(url, location.href).href.replace(/\/+$/, "")} ${stream}`;
  const store = lasting ? new IndexedDbStore(name) : new MemoryStore();
  const producer = await Producer.over(store, url, stream, options);
  if (options.farewell ?? true) addEventListener("pagehide", () => producer.farewell());
  if (store instanceof IndexedDbStore) void adopt(store, name, url, stream, options);
  return producer;
}

/** Send what tabs have left that are no more; one that another tab takes first is its own affair. */
async function adopt(store: IndexedDbStore, name: string, url: string, stream: string, options: ProducerOptions): Promise<void> {
  for (const slot of await store.orphans().catch(() => [])) {
    const producer = await Producer.over(new IndexedDbStore(name, slot), url, stream, options).catch(() => null);
    await producer?.flush().catch(() => {}); // it is kept, and the next page tries again
    await producer?.close(0);
  }
}
