// The browser's producer as one minified module, for measuring it and for tests in a real browser.
import { fileURLToPath } from "node:url";
import { build } from "vite";

export async function bundle() {
  const entry = fileURLToPath(new URL("../src/producer/browser.ts", import.meta.url));
  const [{ output }] = await build({
    logLevel: "silent",
    configFile: false,
    build: {
      write: false,
      target: "es2022",
      lib: { entry, formats: ["es"], fileName: "producer" },
      rolldownOptions: { output: { minify: true } },
    },
  });
  return output[0].code;
}
