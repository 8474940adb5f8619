// The queue alone, at moments that no server can be made to hit.
import { expect, test } from "vitest";
import { Outbox } from "../src/producer/outbox.js";
import { MemoryStore } from "../src/producer/store.js";

const BOUNDS = { queueEvents: 100, queueBytes: 10_000, batchEvents: 10, batchBytes: 1000, lingerMs: 0 };
const nobody = { resolve: () => {}, reject: () => {} };

test.each(Array.from({ length: 20 }, (_, ticks) => ticks))("an event that comes %i steps after another is stored too", async (ticks) => {
  const store = new MemoryStore();
  const outbox = new Outbox(await store.open(0), BOUNDS, store);
  const first = outbox.put("{}", 2, nobody);
  for (let n = 0; n < ticks; n++) await Promise.resolve();
  const second = outbox.put("{}", 2, nobody);
  const late = new Promise((resolve) => setTimeout(resolve, 500, "never"));
  expect(await Promise.race([Promise.all([first, second]), late])).not.toBe("never");
});
