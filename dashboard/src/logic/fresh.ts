// Remembers which rows of a live view changed since they were last shown.
import { type Batch, canonical, keyOf, type Row } from "../server/client";

export class Fresh {
  private last = new Map<string, Row>();
  private fresh = new Set<string>();
  private loaded = false;

  constructor(private readonly key: string[]) {}

  /** Rows of the first snapshot are not news; those that a later one (after a reset) brings are. */
  take({ snapshot, upserts, deletes }: Pick<Batch, "snapshot" | "upserts" | "deletes">): void {
    const before = this.last;
    if (snapshot) {
      this.last = new Map();
      this.fresh.clear();
    }
    for (const row of deletes) this.forget(keyOf(row, this.key));
    for (const row of upserts) this.see(keyOf(row, this.key), row, before);
    this.loaded = true;
  }

  /** The keys that changed since the last call. */
  takeFresh(): Set<string> {
    const taken = this.fresh;
    this.fresh = new Set();
    return taken;
  }

  private see(key: string, row: Row, before: Map<string, Row>): void {
    if (this.loaded && !same(before.get(key), row)) this.fresh.add(key);
    this.last.set(key, row);
  }

  private forget(key: string): void {
    this.last.delete(key);
    this.fresh.delete(key);
  }
}

function same(before: Row | undefined, after: Row): boolean {
  return before !== undefined && canonical(before) === canonical(after);
}
