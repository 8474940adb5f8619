// Asks the server for one JSON document, and turns whatever goes wrong into an error with a code.
import { askedMs } from "../backoff.js";
import type { Problem } from "./contract.js";
import { ClientError, unreachable } from "./errors.js";
import { address } from "./question.js";
import type { World } from "./world.js";

export type Key = string | (() => string | undefined | Promise<string | undefined>);
export type Query = Record<string, string | undefined>;

export interface Extra {
  signal?: AbortSignal;
  timeoutMs?: number;
  body?: unknown;
}

const TIMEOUT_MS = 10_000; // longer than any healthy answer: past it the server is taken for hung

export class Http {
  constructor(
    readonly base: string,
    private readonly key: Key | undefined,
    readonly world: World,
  ) {}

  /** Whether the key may be another one next time. */
  get changes(): boolean {
    return typeof this.key === "function";
  }

  async credential(): Promise<string | undefined> {
    return typeof this.key === "function" ? this.key() : this.key;
  }

  /** null is a 204. */
  async json<T>(path: string, query: Query = {}, extra: Extra = {}): Promise<T> {
    const { signal, timeoutMs = TIMEOUT_MS } = extra;
    const limit = AbortSignal.timeout(timeoutMs);
    const response = await this.ask(path, query, { ...extra, signal: signal ? AbortSignal.any([signal, limit]) : limit });
    try {
      return (response.status === 204 ? null : await response.json()) as T;
    } catch (error) {
      throw unreachable(`the answer to ${path} broke off: ${String(error)}`);
    }
  }

  /** A response that is a success; its body is the caller's. */
  async ask(path: string, query: Query, { signal, body }: Extra, accept = "application/json"): Promise<Response> {
    const key = await this.credential();
    const headers: Record<string, string> = { accept };
    if (key !== undefined) headers["authorization"] = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const request: RequestInit = { headers, ...(signal && { signal }), ...(body !== undefined && { method: "POST", body: JSON.stringify(body) }) };
    let response: Response;
    try {
      response = await this.world.fetch(address(this.base, path, query), request);
    } catch (error) {
      throw unreachable(`the server does not answer: ${reason(error)}`);
    }
    if (!response.ok) throw await refusal(response, path, this.world.now());
    return response;
  }
}

async function refusal(response: Response, path: string, nowMs: number): Promise<ClientError> {
  const told = (await response.json().catch(() => null)) as { error?: Problem } | null;
  const { status } = response;
  const code = status === 401 ? "unauthorized" : status === 429 || status >= 500 ? "unreachable" : "refused"; // of a proxy, which has no code
  const error = new ClientError(told?.error ?? { code, message: `${path} was answered with ${status}` });
  error.afterMs = askedMs(response.headers, nowMs);
  return error;
}

function reason(error: unknown): string {
  const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
  return cause?.code ?? (error instanceof Error ? error.message : String(error));
}
