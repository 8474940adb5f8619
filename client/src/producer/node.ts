// The producer of a Node program: it keeps what is unsent in a folder, if it is given one.
import { NodeJournal } from "./node-journal.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { MemoryStore } from "./store.js";

export type { Receipt } from "./batch.js";
export { isRejection, ProducerError } from "./errors.js";
export type { Handle, ProducerOptions, Status } from "./producer.js";
export { Producer } from "./producer.js";

export interface NodeOptions extends ProducerOptions {
  /** Where unsent events are kept; without it they are in memory and end with the process. One folder per stream. */
  folder?: string;
}

/** Open a producer for one stream. */
export async function openProducer(url: string, stream: string, options: NodeOptions = {}): Promise<Producer> {
  const store = options.folder === undefined ? new MemoryStore() : new NodeJournal(options.folder, stream);
  return Producer.over(store, url, stream, options);
}
