// A folder has one producer at a time, and a killed one leaves no lock behind, whatever the system.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { randomUUID } from "node:crypto";
import type { Server } from "node:net";
import { afterEach, expect, test } from "vitest";
import { addressOf, locked } from "../src/producer/node-lock.js";

const FILE = "darwin";
const opened: Server[] = [];
const children: ChildProcess[] = [];

afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  for (const server of opened.splice(0)) await new Promise((resolve) => server.close(resolve));
});

async function lock(folder: string, platform: string): Promise<Server> {
  const server = await locked(folder, platform);
  opened.push(server);
  return server;
}

async function listeningChild(path: string): Promise<ChildProcess> {
  const code = `require("net").createServer((s) => s.destroy()).listen(process.argv[1], () => console.log("here"))`;
  const child = spawn(process.execPath, ["-e", code, path], { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  await once(child.stdout!, "data");
  return child;
}

test.each([FILE, process.platform])("a folder is held by one at a time (%s)", async (platform) => {
  const folder = `/a folder/${randomUUID()}`;
  const first = await lock(folder, platform);
  await expect(lock(folder, platform)).rejects.toMatchObject({ code: "folder_held" });
  await new Promise((resolve) => first.close(resolve));
  opened.pop();
  await lock(folder, platform);
});

test.skipIf(process.platform === "win32")("the file that a killed process left is taken over", async () => {
  const folder = `/a folder/${randomUUID()}`;
  const path = addressOf(folder, FILE);
  const child = await listeningChild(path);
  await expect(lock(folder, FILE)).rejects.toMatchObject({ code: "folder_held" });
  child.kill("SIGKILL");
  await once(child, "exit");
  expect(existsSync(path)).toBe(true);
  await lock(folder, FILE);
  await expect(lock(folder, FILE)).rejects.toMatchObject({ code: "folder_held" });
});

test.skipIf(process.platform === "win32")("of several that find such a file at once, at most one has the lock", async () => {
  const folder = `/a folder/${randomUUID()}`;
  const path = addressOf(folder, FILE);
  const child = await listeningChild(path);
  child.kill("SIGKILL");
  await once(child, "exit");
  const tried = await Promise.allSettled(Array.from({ length: 5 }, () => lock(folder, FILE)));
  expect(tried.filter(({ status }) => status === "fulfilled").length).toBeLessThanOrEqual(1);
  await rm(path, { force: true });
});
