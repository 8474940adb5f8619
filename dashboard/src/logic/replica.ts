// Holds the page's copy of a subscription's rows and remembers which of them changed since they were last shown.
import type { Row } from "../wire/contract";
import { canonical, keyOf } from "./key";

export class Replica {
  readonly rows = new Map<string, Row>();
  private fresh = new Set<string>();
  private loaded = false;

  constructor(private readonly key: string[]) {}

  /** Replaces all rows. Rows of the first snapshot are not news; those that a later one (after a reset) brings are. */
  snapshot(rows: Row[]): void {
    const before = new Map(this.rows);
    this.rows.clear();
    this.fresh.clear();
    for (const row of rows) {
      const key = keyOf(row, this.key);
      this.rows.set(key, row);
      if (this.loaded && !same(before.get(key), row)) this.fresh.add(key);
    }
    this.loaded = true;
  }

  /** Applies one batch. Deletes come first: a key in both lists ends up as the upsert. */
  changes(upserts: Row[], deletes: Row[]): void {
    for (const row of deletes) {
      const key = keyOf(row, this.key);
      this.rows.delete(key);
      this.fresh.delete(key);
    }
    for (const row of upserts) {
      const key = keyOf(row, this.key);
      if (!same(this.rows.get(key), row)) this.fresh.add(key);
      this.rows.set(key, row);
    }
  }

  /** The keys that changed since the last call. */
  takeFresh(): Set<string> {
    const taken = this.fresh;
    this.fresh = new Set();
    return taken;
  }
}

function same(before: Row | undefined, after: Row): boolean {
  return before !== undefined && canonical(before) === canonical(after);
}
