// The Node counterpart of tests/chaos/producer_child.py: sends until it is killed and says on stdout what it was told.
import { writeSync } from "node:fs";
import { openProducer } from "../dist/producer/node.js";

const [url, folder, first] = process.argv.slice(2);
const say = (...words) => writeSync(1, `${words.join(" ")}\n`);

let ending = false;
process.on("SIGTERM", () => (ending = true));
const options = { batchEvents: 20, lingerMs: 2, timeoutMs: 800, backoffMostMs: 300, queueEvents: 2000, folder, onTrouble: () => {} };
const producer = await openProducer(url, "steps", options);
say("open", first);
let n = Number(first);
while (!ending) {
  const number = n++;
  const { answered } = await producer.send({ n: number });
  say("stored", number);
  answered.then(
    () => say("taken", number),
    (error) => say("failed", number, error),
  );
  await new Promise((resolve) => setTimeout(resolve, 2));
}
await producer.flush(60_000);
say("drained", n);
await producer.close();
