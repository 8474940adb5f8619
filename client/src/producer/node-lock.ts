// Lets one process at a time work on a folder: it listens on a socket that is named after the folder.
//
// On Linux and Windows the name ends with the process. Elsewhere it is a file, which a killed process leaves behind: it is
// removed when nobody answers there. Two that do so in the same moment find out a little later that one of them is too many.
import { createHash } from "node:crypto";
import { rm, stat } from "node:fs/promises";
import { createServer, connect, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ProducerError } from "./errors.js";

const SETTLED_MS = 100;

/** The lock of a folder, until it is closed; `folder_held` when another process has it. */
export async function locked(folder: string, platform: string = process.platform): Promise<Server> {
  const address = addressOf(folder, platform);
  try {
    return await listening(address);
  } catch {
    if (platform === "linux" || platform === "win32" || (await answers(address))) throw held(folder);
  }
  await rm(address, { force: true });
  const server = await listening(address).catch(() => null);
  const mine = server && (await identity(address));
  await pause(SETTLED_MS);
  if (!server || mine !== (await identity(address))) throw held(folder); // not closed: that would remove the other's file
  return server;
}

export function addressOf(folder: string, platform: string): string {
  const name = `penstock-${createHash("sha256").update(folder).digest("hex").slice(0, 32)}`;
  if (platform === "linux") return `\0${name}`;
  return platform === "win32" ? `\\\\.\\pipe\\${name}` : join(tmpdir(), name);
}

function listening(path: string): Promise<Server> {
  const server = createServer((socket) => socket.destroy());
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen({ path, exclusive: true }, () => {
      server.unref();
      resolve(server);
    });
  });
}

function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once("connect", () => resolve(true)).once("error", (error) => resolve(!isGone(error)));
    socket.once("close", () => socket.destroy()).resume();
  });
}

/** Whether an error of `connect` says that nobody listens; any other (no right to ask) is no reason to remove anything. */
function isGone(error: Error): boolean {
  return ["ECONNREFUSED", "ENOENT"].includes((error as NodeJS.ErrnoException).code ?? "");
}

async function identity(path: string): Promise<number | null> {
  const found = await stat(path).catch(() => null);
  return found && found.ino;
}

function held(folder: string): ProducerError {
  return new ProducerError("folder_held", `another producer works on the folder '${folder}'`);
}
