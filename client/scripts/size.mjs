// Prints what a page has to load for the producer.
import { gzipSync } from "node:zlib";
import { bundle } from "./bundle.mjs";

const code = await bundle();
console.log(`@penstock/client/producer: ${code.length} bytes minified, ${gzipSync(code).length} gzipped`);
