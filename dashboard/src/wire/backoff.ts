// Says how long to wait before the next attempt to connect: exponential, capped, with jitter so that pages do not return in step.

const FIRST_MS = 400;
const LONGEST_MS = 10_000;

/** The wait before attempt number `attempt` (0 is the first retry): between half and all of the exponential step. */
export function backoff(attempt: number, random: () => number): number {
  const step = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(attempt, 16));
  return Math.round(step * (0.5 + random() / 2));
}
