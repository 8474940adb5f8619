// One subscription, whatever carries it: makes whole batches of messages, and knows where to go on from.
//
// 1. A batch reaches the reader once and whole; parts of a snapshot whose connection broke are forgotten.
// 2. `position` is that of the last batch that reached the reader: a resume on any transport brings exactly what follows.
// 3. After a reset the old position is never used again, and the reader is told why with the snapshot that follows.
import type { Batch, Behind, EventBatch, Message, Position, Row } from "./contract.js";
import type { ClientError } from "./errors.js";
import { type Fields, fieldsOf, type Question, type Since, type Target } from "./question.js";

export type State = "connecting" | "live" | "stalled" | "offline";
export type Told = Batch | EventBatch;

/** Who wants the batches. */
export interface Reader {
  /** `bytes` is how long its messages were. */
  batch(batch: Told, bytes: number): void;
  /** It has ended, for good. */
  failed(error: ClientError): void;
  /** `state`, `position` or `lagMs` is another one. */
  moved(): void;
}

/** What goes with a subscription beside its question: a name under which the server remembers what was acknowledged, and a pace. */
export interface Manner {
  name?: string | undefined;
  /** Messages per second at most; the server merges what lies between. */
  pace?: number | undefined;
}

export class Subscription {
  /** On the socket; a changed question gets a new one, so that no answer to the old one can be taken for its own. */
  id = "";
  #parts: Row[] = [];
  #partBytes = 0;
  #reset: string | null = null;
  #confirmed = false;
  #behind: Behind | null = null;
  #heardAt: number | null = null;
  #ageMs: number | null = null;
  #connected: "connecting" | "live" | "offline" = "connecting";

  constructor(
    readonly target: Target,
    public question: Question,
    public position: Since | null,
    readonly manner: Manner,
    private readonly reader: Reader,
    private readonly now: () => number,
  ) {}

  get state(): State {
    if (this.#connected !== "live") return this.#connected;
    if (this.#behind) return "stalled";
    return this.#confirmed ? "live" : "connecting";
  }

  /** How long the newest event took from the door to here; while stalled or cut off, growing. null: nobody said. */
  get lagMs(): number | null {
    if (this.state === "live" || this.#heardAt === null) return this.#ageMs;
    return (this.#behind?.seconds ?? 0) * 1000 + this.now() - this.#heardAt;
  }

  get behind(): Behind | null {
    return this.#behind;
  }

  /** The fields of the message that asks for it. */
  fields(): Fields {
    return { type: "subscribe", id: this.id, ...fieldsOf(this.target, this.question), since: this.position, name: this.manner.name };
  }

  /** Called before it is asked for on a connection: what an earlier one left half done does not count. */
  begin(): void {
    this.#forgetParts();
    this.#confirmed = false;
    this.#behind = null;
    this.connected("live");
  }

  connected(state: "connecting" | "live" | "offline"): void {
    const before = this.state;
    this.#connected = state;
    if (this.state !== before) this.reader.moved();
  }

  /** The server has it and goes on from its position; a subscription without one is confirmed by its snapshot. */
  confirm(): void {
    const snapshotFollows = this.position === null && this.manner.name === undefined;
    if (this.#confirmed || snapshotFollows) return;
    this.#confirmed = true;
    this.reader.moved();
  }

  /** Another question: what is held answers the old one until the snapshot of the new one is there. */
  change(question: Question): void {
    this.question = question;
    this.position = null;
    this.#reset = null;
  }

  /** The position leads nowhere. */
  lose(reason: string): void {
    this.position = null;
    this.#reset = reason;
  }

  fail(error: ClientError): void {
    this.connected("offline");
    this.reader.failed(error);
  }

  take(message: Message, bytes: number): void {
    this.#heardAt = this.now();
    switch (message.type) {
      case "snapshot":
        return this.#snapshot(message, bytes);
      case "changes":
        return this.#changes(message, bytes);
      case "events":
        return this.#tell({ name: this.target.name, position: message.position, events: message.events, reset: this.#reset }, bytes);
      case "position":
        this.#at(message.position);
        return this.reader.moved();
      case "reset":
        this.#forgetParts();
        this.#confirmed = false;
        this.lose(message.reason ?? "the server said so");
        return this.reader.moved();
      case "stall":
        this.#behind = message.behind ?? {};
        return this.reader.moved();
    }
  }

  #snapshot(message: Message & { type: "snapshot" }, bytes: number): void {
    const { part = 1, parts = 1, position } = message;
    for (const row of message.rows) this.#parts.push(row);
    this.#partBytes += bytes;
    if (part < parts) return;
    const [upserts, whole] = [this.#parts, this.#partBytes];
    this.#forgetParts();
    this.#tell({ ...this.#empty(position), snapshot: true, upserts, reset: this.#reset }, whole);
  }

  #forgetParts(): void {
    this.#parts = [];
    this.#partBytes = 0;
  }

  #changes({ position, upserts, deletes, accepted }: Message & { type: "changes" }, bytes: number): void {
    if (position === this.position) return;
    if (accepted !== undefined) this.#ageMs = Math.max(0, this.now() - Date.parse(accepted));
    this.#tell({ ...this.#empty(position), upserts, deletes, accepted: accepted ?? null }, bytes);
  }

  #empty(position: Position): Batch {
    return { name: this.target.name, position, snapshot: false, upserts: [], deletes: [], reset: null, accepted: null };
  }

  #tell(batch: Told, bytes: number): void {
    this.#at(batch.position);
    this.#reset = null;
    this.reader.batch(batch, bytes);
  }

  #at(position: Position): void {
    this.position = position;
    this.#confirmed = true;
    this.#behind = null;
  }
}
