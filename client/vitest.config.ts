import { defineConfig } from "vitest/config";

// Node before 22 has a WebSocket behind a flag only.
export default defineConfig({ test: { include: ["test/**/*.test.ts"], testTimeout: 20_000, pool: "forks", execArgv: ["--experimental-websocket", "--no-warnings"] } });
