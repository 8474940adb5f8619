// What can go wrong for a sender: the same codes as in Python.

export type Code =
  | "bad_event"
  | "too_large"
  | "queue_full"
  | "event_rejected"
  | "unsent"
  | "producer_closed"
  | "producer_fenced"
  | "folder_held"
  | "wrong_folder"
  | "store_failed"
  | "unreachable"
  | "refused";

export class ProducerError extends Error {
  override readonly name = "ProducerError";
  /** For `event_rejected`: the server's code of why. */
  readonly reason: string | undefined;

  constructor(
    readonly code: Code,
    message: string,
    reason?: string,
  ) {
    super(message);
    this.reason = reason;
  }
}

export function isRejection(error: unknown): error is ProducerError {
  return error instanceof ProducerError && error.code === "event_rejected";
}
