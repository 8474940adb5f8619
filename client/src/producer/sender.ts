// Sends batch after batch, each until the door has it.
import { Backoff } from "../backoff.js";
import type { Batch } from "./batch.js";
import { ProducerError } from "./errors.js";
import type { Outbox } from "./outbox.js";
import { judge, type Verdict } from "./verdict.js";

export type Doing = "idle" | "sending" | "retrying" | "blocked" | "fenced" | "closed";

export interface SenderOptions {
  readonly url: string;
  readonly producer: string;
  readonly key: string | (() => string | Promise<string>) | undefined;
  readonly compress: boolean;
  readonly timeoutMs: number;
  readonly backoffMostMs: number;
  readonly onRejected: ((event: string, error: ProducerError) => void) | undefined;
  readonly onTrouble: (error: ProducerError) => void;
  readonly now: () => number;
  readonly random: () => number;
}

const COMPRESS_CHARACTERS = 1024;
const KEEPALIVE_BYTES = 60_000; // browsers allow 64 KiB
const REMIND_MS = 60_000; // what could have passed by itself is told from then on

export class Sender {
  doing: Doing = "idle";
  error: ProducerError | null = null;
  readonly #stop = new AbortController();
  readonly #backoff: Backoff;
  #told: { message: string; at: number } | null = null;
  #running: Promise<void> = Promise.resolve();

  constructor(
    private readonly outbox: Outbox,
    private readonly options: SenderOptions,
  ) {
    this.#backoff = new Backoff(options.backoffMostMs, options.random);
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Break off; what is under way is not known to be taken, and keeps its number. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }

  /** The last that a page can do: the request goes on without it. The batch keeps its number, so that a repeat does no harm. */
  farewell(): void {
    const batch = this.outbox.lastBatch(KEEPALIVE_BYTES);
    const body = batch && bodyOf(batch);
    if (!batch || !body || body.length > KEEPALIVE_BYTES) return;
    const key = typeof this.options.key === "function" ? this.options.key() : this.options.key;
    if (key instanceof Promise) return; // the page does not live to see it
    fetch(this.options.url, { method: "POST", body, headers: this.#headers(batch, key), keepalive: true }).catch(() => {});
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      try {
        const batch = await this.outbox.nextBatch();
        if (!batch) break;
        await this.#act(batch, await this.#try(batch));
      } catch (error) {
        const told = error instanceof ProducerError ? error : new ProducerError("store_failed", String(error));
        await this.#wait("blocked", told);
      }
    }
  }

  async #try(batch: Batch): Promise<Verdict> {
    if (this.doing === "idle") this.doing = "sending";
    const { key, compress, url, timeoutMs, now } = this.options;
    const plain = bodyOf(batch);
    const packed = compress && plain.length >= COMPRESS_CHARACTERS && typeof CompressionStream === "function";
    const body = packed ? await gzip(plain) : plain;
    const headers = this.#headers(batch, typeof key === "function" ? await key() : key);
    if (packed) headers["Content-Encoding"] = "gzip";
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
    const halt = (): void => limit.abort();
    this.#stop.signal.addEventListener("abort", halt);
    try {
      const signal = limit.signal;
      const response = await fetch(url, { method: "POST", body, headers, signal, redirect: "manual", cache: "no-store" });
      return judge({ status: response.status, headers: response.headers, body: await response.text() }, now());
    } catch (error) {
      const told = new ProducerError("unreachable", `${url} does not answer: ${reason(error)}`);
      return { kind: "again", error: told, doubtful: true, loud: false, afterMs: undefined };
    } finally {
      clearTimeout(timer);
      this.#stop.signal.removeEventListener("abort", halt);
    }
  }

  #headers(batch: Batch, key: string | undefined): Record<string, string> {
    return {
      "Content-Type": "application/x-ndjson",
      "Producer-Id": this.options.producer,
      "Producer-Epoch": String(batch.number.epoch),
      "Producer-Seq": String(batch.number.sequence),
      "Penstock-Sent": String(Math.floor(this.options.now())),
      ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }),
    };
  }

  async #act(batch: Batch, verdict: Verdict): Promise<void> {
    switch (verdict.kind) {
      case "settled":
        for (const [index, error] of verdict.rejected) this.#reject(batch.lines[index] ?? "", error);
        this.#backoff.succeeded();
        this.#told = null;
        this.doing = "idle";
        this.error = null;
        this.outbox.settle(verdict.receipt, verdict.rejected);
        return;
      case "again":
        if (verdict.doubtful) this.outbox.doubt();
        return this.#wait(verdict.loud ? "blocked" : "retrying", verdict.error, verdict.afterMs);
      case "smaller":
        return this.#makeSmaller(batch, verdict.error);
      case "forgotten":
        return this.#renumber(batch, verdict.error);
      case "fenced":
        if (batch.number.epoch < this.outbox.epoch) return this.#renumber(batch, verdict.error);
        this.doing = "fenced";
        this.error = verdict.error;
        this.options.onTrouble(verdict.error);
        this.outbox.end(verdict.error);
    }
  }

  /** The number is not used up, so that it may hold fewer events, unless an earlier try was taken. */
  async #makeSmaller(batch: Batch, error: ProducerError): Promise<void> {
    if (batch.number.doubtful) return this.#ask(batch, error);
    if (batch.lines.length > 1) return this.outbox.shrink();
    const refused = new ProducerError("event_rejected", `the server takes no request of this size: ${error.message}`, "too_large");
    this.#reject(batch.lines[0] ?? "", refused);
    this.outbox.refuse(refused);
  }

  /** Find out whether a doubtful batch was taken: a number too far ahead is refused with the one that is expected. */
  async #ask(batch: Batch, error: ProducerError): Promise<void> {
    const { sequence } = batch.number;
    const verdict = await this.#try({ number: { ...batch.number, sequence: sequence + 2 }, lines: ["{}"] });
    if (verdict.kind === "forgotten" && verdict.expected === sequence) return this.outbox.trust();
    if (verdict.kind === "forgotten" && verdict.expected > sequence) {
      return this.outbox.settle({ ack: "", repeated: true, shed: 0 }, new Map());
    }
    if (verdict.kind === "settled" || verdict.kind === "smaller") return this.#wait("blocked", error);
    return this.#act(batch, verdict);
  }

  /** Nobody can say any more whether a doubtful batch was taken; twice and told is better than lost. */
  async #renumber(batch: Batch, error: ProducerError): Promise<void> {
    if (batch.number.doubtful) {
      const count = batch.lines.length;
      const told = `${count} events may be in the stream twice: the server no longer knows their number (${error.message})`;
      this.options.onTrouble(new ProducerError("refused", told));
    }
    await this.outbox.renumber(this.options.now());
  }

  #reject(line: string, error: ProducerError): void {
    try {
      if (this.options.onRejected) this.options.onRejected(line, error);
      else this.options.onTrouble(error);
    } catch (failure) {
      console.error("penstock: onRejected failed", failure);
    }
  }

  async #wait(doing: Doing, error: ProducerError, afterMs?: number): Promise<void> {
    this.doing = doing;
    this.error = error;
    const at = performance.now();
    const first = this.#told?.message !== error.message;
    if (first || at - (this.#told?.at ?? at) > REMIND_MS) {
      this.#told = { message: error.message, at };
      if (!first || doing === "blocked") this.options.onTrouble(error);
    }
    await pause(this.#backoff.pauseMs(afterMs), this.#stop.signal);
  }
}

function bodyOf(batch: Batch): string {
  return `${batch.lines.join("\n")}\n`;
}

async function gzip(text: string): Promise<ArrayBuffer> {
  return new Response(new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
}

function reason(error: unknown): string {
  const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
  return cause?.code ?? (error instanceof Error ? error.message : String(error));
}

/** Also over when the network is back: a phone that comes online does not wait out its last pause. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      globalThis.removeEventListener?.("online", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
    globalThis.addEventListener?.("online", done);
  });
}
