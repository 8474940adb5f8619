// What can go wrong for a reader: the server's own codes, and `unreachable` and `closed` of the client.
import type { Problem } from "./contract.js";

/** Codes that pass by themselves: the subscription is asked for again. All others end it. */
const PASSING = new Set(["internal", "not_ready", "overloaded", "too_many", "lagging", "log_unavailable", "outcome_unknown", "disk_full", "too_slow", "not_yet", "unreachable"]);
/** Codes of a position that leads nowhere: what was known is given up, and a snapshot asked for. */
const LOST = new Set(["bad_position", "position_gone"]);

export class ClientError extends Error {
  override readonly name = "ClientError";
  /** When the server asks to come again. */
  afterMs: number | undefined;

  /** `problem` is what the server said, with its `detail` and `hint`. */
  constructor(readonly problem: Problem) {
    super(`${problem.code}: ${problem.message}`);
  }

  get code(): string {
    return this.problem.code;
  }

  get hint(): string | null {
    return this.problem.hint ?? null;
  }

  get passing(): boolean {
    return PASSING.has(this.code);
  }

  get lostPosition(): boolean {
    return LOST.has(this.code);
  }

  /** The credential is not taken, so that nothing else on this connection will be either. */
  get refused(): boolean {
    return this.code === "unauthorized";
  }
}

export function unreachable(message: string): ClientError {
  return new ClientError({ code: "unreachable", message });
}

export function closedError(): ClientError {
  return new ClientError({ code: "closed", message: "it was closed by this program" });
}
