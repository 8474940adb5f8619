// Keeps what is unsent in a folder of a Node program: an append-only file, fsynced at every write, and written anew when most of it
// is out of date.
//
// 1. A line is whole or does not count: it begins with a checksum, and what follows a broken line was never promised to anyone.
// 2. One process works on a folder at a time (`node-lock.ts`).
import { type FileHandle, mkdir, open, readFile, realpath, rename, rm } from "node:fs/promises";
import type { Server } from "node:net";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import type { Numbered } from "./batch.js";
import { ProducerError } from "./errors.js";
import { locked } from "./node-lock.js";
import { type Changes, type Found, newId, raised, type Store } from "./store.js";

interface Head {
  format: 1;
  stream: string;
  producer: string;
}

interface Line {
  head?: Head;
  events?: readonly (readonly [number, string])[];
  state?: { settled: number; batch: Numbered | null; epoch: number };
}

const REWRITE_BYTES = 1024 ** 2;

export class NodeJournal implements Store {
  readonly lasting = true;
  #file: FileHandle | null = null;
  #lock: Server | null = null;
  #size = 0;
  #liveBytes = 0;
  #live = new Map<number, string>();
  #state: NonNullable<Line["state"]> = { settled: 0, batch: null, epoch: 0 };
  #head: Head;

  constructor(
    private readonly folder: string,
    stream: string,
  ) {
    this.#head = { format: 1, stream, producer: newId() };
  }

  async open(nowMs: number): Promise<Found> {
    await mkdir(this.folder, { recursive: true });
    this.#lock = await locked(await realpath(this.folder));
    try {
      await this.#read();
      this.#state = { ...this.#state, epoch: raised(this.#state.epoch, nowMs) };
      await this.#rewrite();
    } catch (error) {
      await this.close();
      throw error;
    }
    const { batch, epoch } = this.#state;
    const events = [...this.#live];
    return { producer: this.#head.producer, epoch, events, batch: batch && { ...batch, doubtful: true } };
  }

  async write({ events, state }: Changes): Promise<void> {
    if (!this.#file) throw new ProducerError("producer_closed", "this producer is closed");
    const line = encoded(state ? { events, state } : { events });
    try {
      await this.#file.appendFile(line);
      await this.#file.datasync();
      this.#size += line.length;
    } catch (error) {
      await this.#file.truncate(this.#size).catch(() => {});
      throw new ProducerError("store_failed", `the queue in '${this.folder}' cannot be written: ${error}`);
    }
    this.#apply(state ? { events, state } : { events });
    if (this.#size > REWRITE_BYTES && this.#size > 4 * this.#liveBytes) {
      await this.#rewrite().catch(() => {}); // what was to be written is; the file is made smaller another time
    }
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = null;
    const lock = this.#lock;
    this.#lock = null;
    if (lock) await new Promise((resolve) => lock.close(resolve));
  }

  get #path(): string {
    return join(this.folder, "queue.jsonl");
  }

  async #read(): Promise<void> {
    const raw = await readFile(this.#path).catch(() => null);
    if (!raw) return;
    for (let start = 0, end = raw.indexOf(10); end >= 0; start = end + 1, end = raw.indexOf(10, start)) {
      const line = parsed(raw.subarray(start, end));
      if (!line) break;
      this.#apply(line);
    }
  }

  #apply({ head, events, state }: Line): void {
    if (head && head.stream !== this.#head.stream) {
      throw new ProducerError("wrong_folder", `the folder '${this.folder}' belongs to the stream '${head.stream}'`);
    }
    if (head) this.#head = head;
    for (const [n, line] of events ?? []) {
      this.#live.set(n, line);
      this.#liveBytes += line.length;
    }
    if (!state) return;
    this.#state = state;
    for (const [n, line] of this.#live) {
      if (n > state.settled) break;
      this.#live.delete(n);
      this.#liveBytes -= line.length;
    }
  }

  /** A new file with what is still of use takes the place of the old one, whole or not at all. */
  async #rewrite(): Promise<void> {
    const next = `${this.#path}.new`;
    const line = encoded({ head: this.#head, events: [...this.#live], state: this.#state });
    await rm(next, { force: true });
    const file = await open(next, "a");
    try {
      await file.appendFile(line);
      await file.datasync();
      await rename(next, this.#path);
    } catch (error) {
      await file.close();
      throw error;
    }
    const old = this.#file;
    this.#file = file;
    this.#size = line.length;
    await old?.close();
    await synced(this.folder);
  }
}

/** Make a rename last; not every system can. */
async function synced(folder: string): Promise<void> {
  const handle = await open(folder, "r").catch(() => null);
  await handle?.sync().catch(() => {});
  await handle?.close();
}

function encoded(line: Line): Buffer {
  const body = JSON.stringify(line);
  return Buffer.from(`${crc32(body).toString(16).padStart(8, "0")} ${body}\n`);
}

function parsed(raw: Buffer): Line | null {
  const body = raw.subarray(9).toString();
  if (raw.length < 10 || parseInt(raw.subarray(0, 8).toString(), 16) !== crc32(body)) return null;
  return JSON.parse(body) as Line;
}
