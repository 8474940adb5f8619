// An entry of the package as one minified module, for measuring it and for tests in a real browser.
import { fileURLToPath } from "node:url";
import { build } from "vite";

export async function bundle(path = "producer/browser.ts") {
  const entry = fileURLToPath(new URL(`../src/${path}`, import.meta.url));
  const [{ output }] = await build({
    logLevel: "silent",
    configFile: false,
    build: {
      write: false,
      target: "es2022",
      lib: { entry, formats: ["es"], fileName: "entry" },
      rolldownOptions: { output: { minify: true } },
    },
  });
  return output[0].code;
}
