// Reads one JSON document of the server, with a deadline, from an address relative to the page.
import { shown } from "./credential";

const DEADLINE_MS = 10_000; // longer than any healthy answer: past it the server is taken for hung

export async function read<T>(path: string): Promise<T> {
  const response = await fetch(new URL(path, document.baseURI), {
    headers: { accept: "application/json", ...shown() },
    signal: AbortSignal.timeout(DEADLINE_MS),
  });
  if (!response.ok) throw new Error(`GET /${path} answered ${response.status}`);
  return (await response.json()) as T;
}

/** Whether the server answers, and will not answer this to us. */
export async function isRefused(path: string): Promise<boolean> {
  try {
    const response = await fetch(new URL(path, document.baseURI), { headers: shown(), signal: AbortSignal.timeout(DEADLINE_MS) });
    return response.status === 401 || response.status === 403;
  } catch {
    return false;
  }
}
