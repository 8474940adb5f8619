// Carries all subscriptions of a client over one WebSocket.
import type { Message } from "./contract.js";
import { ClientError, unreachable } from "./errors.js";
import type { Link, Owner, Timing } from "./link.js";
import type { Fields } from "./question.js";
import type { Subscription } from "./subscription.js";
import type { SocketLike, World } from "./world.js";

/** Close codes after which coming back with the same words and the same credential leads to the same end. */
const BAD = "bad_request";
const FINAL: Record<number, string> = { 1002: BAD, 1003: BAD, 1007: BAD, 1008: "forbidden", 1009: BAD, 4400: BAD, 4401: "unauthorized", 4403: "forbidden", 4404: "not_found" };

const CLOSE_MS = 20;

export class SocketLink implements Link {
  readonly #byId = new Map<string, Subscription>();
  readonly #socket: SocketLike | null;
  #cancel: () => void;
  #heardAt = 0;
  #answerBy = Infinity;
  #lastWord: ClientError | null = null;
  #over = false;

  constructor(
    url: string,
    key: string | undefined,
    private readonly world: World,
    private readonly timing: Timing,
    private readonly owner: Owner,
  ) {
    this.#cancel = world.later(() => this.#end(unreachable("it does not open")), timing.openMs);
    this.#socket = this.#open(url, key === undefined ? [] : ["penstock", `bearer.${key}`]);
  }

  ask(subscription: Subscription): void {
    this.#byId.set(subscription.id, subscription);
    subscription.begin();
    this.tell(subscription.fields());
    this.tell({ type: "ping", id: subscription.id }); // there may be no news: the pong says that it was heard
  }

  drop(subscription: Subscription): void {
    if (this.#byId.delete(subscription.id)) this.tell({ type: "unsubscribe", id: subscription.id });
  }

  tell(fields: Fields): void {
    if (!this.#over) this.#socket?.send(JSON.stringify(fields));
  }

  check(withinMs: number): void {
    const asked = this.world.now();
    if (asked + withinMs >= this.#answerBy) return; // it is being asked already
    this.#answerBy = asked + withinMs;
    this.tell({ type: "ping" });
    this.#cancel();
    this.#cancel = this.world.later(() => {
      this.#answerBy = Infinity;
      if (this.#heardAt >= asked) this.#watch();
      else this.#end(unreachable("the server does not answer"));
    }, withinMs);
  }

  close(): void {
    this.#over = true;
    this.#cancel();
    const socket = this.#socket;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {}; // some implementations throw what nobody hears
    socket.close(1000);
  }

  #open(url: string, protocols: string[]): SocketLike | null {
    try {
      const socket = new this.world.WebSocket!(url, protocols);
      socket.onopen = () => this.#opened();
      socket.onmessage = (event: { data: string }) => this.#take(event.data);
      socket.onclose = (event: { code: number; reason: string }) => this.#closed(event.code, event.reason);
      socket.onerror = () => void this.world.later(() => this.#closed(1006, ""), CLOSE_MS); // most say `onclose` next, some never
      return socket;
    } catch (error) {
      queueMicrotask(() => this.#end(unreachable(String(error))));
      return null;
    }
  }

  #opened(): void {
    this.#cancel();
    this.#heardAt = this.world.now();
    this.#watch();
    this.owner.opened(this);
  }

  #watch(): void {
    const silentMs = this.world.now() - this.#heardAt;
    if (silentMs >= this.timing.silenceMs) this.check(this.timing.pongMs);
    else this.#cancel = this.world.later(() => this.#watch(), this.timing.silenceMs - silentMs);
  }

  #take(text: string): void {
    const message = read(text);
    if (!message) return this.#end(unreachable("what came is not of this server"));
    this.#heardAt = this.world.now();
    this.owner.heard();
    const subscription = this.#byId.get(message.id ?? "");
    if (message.type === "error") this.#problem(subscription, message, new ClientError(message.error));
    else if (message.type === "pong") this.#there(subscription);
    else subscription?.take(message, text.length); // else an answer to one that was ended meanwhile
  }

  /** Its pace is told only now: before, the server did not know whether it can have one. */
  #there(subscription: Subscription | undefined): void {
    const { id, manner } = subscription ?? {};
    if (manner?.pace !== undefined) this.tell({ type: "pace", id, per_s: manner.pace });
    subscription?.confirm();
  }

  /** One without an id is about the connection: the server says why it is going to close it. An ack that failed ends nothing: a later one covers it. */
  #problem(subscription: Subscription | undefined, { id, to }: { id?: string; to?: string }, error: ClientError): void {
    if (to) console.error("penstock: an ack failed", error);
    else if (id === undefined) this.#lastWord = error;
    else if (subscription) this.owner.problem(subscription, error);
  }

  #closed(code: number, reason: string): void {
    const final = FINAL[code];
    const message = `the WebSocket was closed (${code}${reason ? `, ${reason}` : ""})`;
    const error = final === undefined ? unreachable(message) : (this.#lastWord ?? new ClientError({ code: final, message }));
    this.#end(error, final === undefined);
  }

  #end(error: ClientError, again = true): void {
    if (this.#over) return;
    this.close();
    this.owner.ended(this, { error, again });
  }
}

function read(text: string): (Message & { id?: string }) | null {
  try {
    return JSON.parse(text) as (Message & { id?: string }) | null;
  } catch {
    return null;
  }
}
