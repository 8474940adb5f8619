// Where a reader keeps what it knows over a reload: the contract of every store, those of a browser's storages, and their bounds.
//
// 1. An entry is written whole: a position and the rows at that position are one text. So another tab that writes the same entry does no
//    harm; whoever reads gets one or the other, and both lead on.
// 2. What cannot be read, is of another form or does not fit is as if it were not there: a snapshot replaces it.
// 3. There are at most `ENTRIES_MOST` entries, none longer than `ENTRY_CHARACTERS`; the oldest give way.

export interface Store {
  get(name: string): Promise<string | null>;
  /** Throws nothing that matters: what cannot be kept is not kept. */
  set(name: string, text: string): Promise<void>;
  delete(name: string): Promise<void>;
}

export const ENTRY_CHARACTERS = 512 * 1024;
export const ENTRIES_MOST = 32;
const PREFIX = "penstock ";

export class MemoryStore implements Store {
  readonly #entries = new Map<string, string>();

  async get(name: string): Promise<string | null> {
    return this.#entries.get(name) ?? null;
  }

  async set(name: string, text: string): Promise<void> {
    this.#entries.delete(name);
    this.#entries.set(name, text);
    for (const old of this.#entries.keys()) if (this.#entries.size > ENTRIES_MOST) this.#entries.delete(old);
  }

  async delete(name: string): Promise<void> {
    this.#entries.delete(name);
  }
}

/** In `localStorage`, or in `sessionStorage`, which ends with the tab. Each entry begins with when it was written. */
export class WebStore implements Store {
  constructor(
    private readonly storage: Storage,
    private readonly now: () => number = Date.now,
  ) {}

  async get(name: string): Promise<string | null> {
    const found = this.storage.getItem(PREFIX + name);
    return found === null ? null : found.slice(found.indexOf(" ") + 1);
  }

  /** Synchronous up to its end, so that it works while a page goes away. */
  async set(name: string, text: string): Promise<void> {
    const own = this.#oldest().filter((key) => key !== PREFIX + name);
    while (own.length >= ENTRIES_MOST) this.storage.removeItem(own.shift()!);
    for (;;) {
      try {
        return this.storage.setItem(PREFIX + name, `${this.now()} ${text}`);
      } catch {
        const old = own.shift(); // no room: that of the oldest
        if (old === undefined) return this.storage.removeItem(PREFIX + name); // an older position than the page's own helps nobody
        this.storage.removeItem(old);
      }
    }
  }

  async delete(name: string): Promise<void> {
    this.storage.removeItem(PREFIX + name);
  }

  #oldest(): string[] {
    const keys = Array.from({ length: this.storage.length }, (_, n) => this.storage.key(n) ?? "").filter((key) => key.startsWith(PREFIX));
    const written = new Map(keys.map((key) => [key, Number.parseFloat(this.storage.getItem(key) ?? "") || 0]));
    return keys.sort((a, b) => written.get(a)! - written.get(b)!);
  }
}
