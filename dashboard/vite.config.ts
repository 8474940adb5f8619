// Builds the page into the Python package, which serves it at `/`; relative addresses, so it also works behind a prefix.
import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../penstock/serve/page",
    emptyOutDir: true,
    assetsInlineLimit: 0, // no data: addresses, so that a strict Content-Security-Policy fits
    modulePreload: false,
  },
  test: { include: ["test/**/*.test.ts"] },
});
