// Prints what a page has to load for each entry, and fails when reading costs more than was promised.
import { gzipSync } from "node:zlib";
import { bundle } from "./bundle.mjs";

const ENTRIES = [
  ["@penstock/client", "reader/client.ts", 10_000],
  ["@penstock/client/producer", "producer/browser.ts", Infinity],
];

for (const [name, path, most] of ENTRIES) {
  const code = await bundle(path);
  const packed = gzipSync(code).length;
  const bound = most === Infinity ? "" : ` of ${most} allowed`;
  console.log(`${name}: ${code.length} bytes minified, ${packed} gzipped${bound}`);
  if (packed > most) process.exitCode = 1;
}
