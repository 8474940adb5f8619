// How long to wait before the next try: ever longer, at random, and as long as the server asks.

const FIRST_MS = 100;
const LONGEST_ASKED_MS = 3_600_000;

/** Full jitter: the n-th wait is anything from 0 to 100 ms * 2^n, so that many producers do not come at once. */
export class Backoff {
  #failures = 0;

  constructor(
    private readonly mostMs: number,
    private readonly random: () => number,
  ) {}

  succeeded(): void {
    this.#failures = 0;
  }

  pauseMs(askedMs?: number): number {
    const jitter = this.random() * Math.min(this.mostMs, FIRST_MS * 2 ** Math.min(this.#failures, 30));
    this.#failures += 1;
    return askedMs === undefined ? jitter : Math.min(askedMs, LONGEST_ASKED_MS) + jitter * 0.1;
  }
}

/** `Retry-After` in milliseconds: a number of seconds, or a date seen from the server's own `Date` if it can be read. */
export function askedMs(headers: Headers, nowMs: number): number | undefined {
  const text = headers.get("Retry-After");
  if (text === null) return undefined;
  const seconds = Number(text);
  if (!Number.isNaN(seconds)) return Math.max(0, seconds * 1000);
  const moment = Date.parse(text);
  if (Number.isNaN(moment)) return undefined;
  const server = Date.parse(headers.get("Date") ?? "");
  return Math.max(0, moment - (Number.isNaN(server) ? nowMs : server));
}
