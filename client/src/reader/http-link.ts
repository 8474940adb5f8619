// Carries subscriptions where no WebSocket gets through: as Server-Sent Events, or by asking again and again.
//
// Anything that breaks ends the whole link: coming back costs a request each, and positions bring exactly what was missed. A browser
// opens six connections to a server at most, so a few subscriptions have a stream each and the rest take turns.
import type { Message, Position, Row } from "./contract.js";
import { ClientError, unreachable } from "./errors.js";
import type { Http, Query } from "./http.js";
import type { Link, Owner, Timing, Transport } from "./link.js";
import { address, pathOf, queryOf, type Target } from "./question.js";
import { SseParser } from "./sse-parser.js";
import type { Subscription } from "./subscription.js";
import type { SourceLike } from "./world.js";

const STREAMS_MOST = 4;
const WAIT_S = 25; // shorter than the silence that proxies allow
const FIRST_WAIT_S = 1; // so that one hears soon whether it works
const TURN_MS = 1000;
const TYPES = ["snapshot", "changes", "events", "reset", "stall", "error"];

interface Polled {
  rows?: Row[];
  messages?: Message[];
  events?: Row[];
  position?: Position;
  next?: Position;
}

export class HttpLink implements Link {
  readonly #open = new Map<Subscription, AbortController>();
  readonly #streams = new Set<Subscription>();
  #over = false;

  constructor(
    private readonly transport: Exclude<Transport, "websocket">,
    private readonly http: Http,
    private readonly timing: Timing,
    private readonly owner: Owner,
  ) {
    http.json("healthz").then(
      () => !this.#over && owner.opened(this),
      (error: ClientError) => this.#end(error),
    );
  }

  ask(subscription: Subscription): void {
    const stop = new AbortController();
    this.#open.set(subscription, stop);
    subscription.begin();
    this.#follow(subscription, stop.signal).catch((error: unknown) => {
      if (stop.signal.aborted) return;
      this.drop(subscription);
      const told = error instanceof ClientError ? error : unreachable(String(error));
      if (told.code === "unreachable" || told.refused) this.#end(told);
      else this.owner.problem(subscription, told);
    });
  }

  drop(subscription: Subscription): void {
    this.#open.get(subscription)?.abort();
    this.#open.delete(subscription);
    this.#streams.delete(subscription);
  }

  tell(): void {}

  /** Nobody can be asked on a stream that only the server writes: a new one says whether the old one lived. */
  check(): void {
    this.#end(unreachable("a new connection is tried"));
  }

  close(): void {
    this.#over = true;
    for (const subscription of [...this.#open.keys()]) this.drop(subscription);
  }

  #end(error: ClientError): void {
    if (this.#over) return;
    this.close();
    this.owner.ended(this, { error, again: !error.refused });
  }

  #take(subscription: Subscription, message: Message, bytes: number): void {
    this.owner.heard();
    if (message.type === "error") throw new ClientError(message.error);
    subscription.take(message, bytes);
  }

  #follow(subscription: Subscription, signal: AbortSignal): Promise<void> {
    const { EventSource } = this.http.world;
    if (this.transport === "poll" || (EventSource && this.#streams.size >= STREAMS_MOST)) return this.#poll(subscription, signal);
    this.#streams.add(subscription);
    return EventSource ? this.#source(subscription, signal) : this.#stream(subscription, signal);
  }

  // Server-Sent Events

  /** A view's position goes into `last_event_id`; a stream takes its beginning there too. */
  #events(subscription: Subscription): [string, Query] {
    const { target, question, position } = subscription;
    const since = position === "start" ? undefined : (position ?? undefined);
    return [`${pathOf(target)}/events`, { ...queryOf(question), last_event_id: since }];
  }

  async #stream(subscription: Subscription, signal: AbortSignal): Promise<void> {
    const silent = new AbortController();
    let cancel = this.#later(this.timing.openMs, () => silent.abort());
    try {
      const both = AbortSignal.any([signal, silent.signal]);
      const response = await this.http.ask(...this.#events(subscription), { signal: both }, "text/event-stream");
      this.owner.heard();
      subscription.confirm();
      const parser = new SseParser();
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        cancel();
        cancel = this.#later(this.timing.silenceMs + this.timing.pongMs, () => silent.abort());
        const { done, value } = await reader.read();
        if (done) throw unreachable("the server has ended the stream");
        for (const { type, data, id } of parser.take(value)) {
          const message = (data === "" ? { type: "position", position: id } : { type, ...JSON.parse(data) }) as Message;
          this.#take(subscription, message, data.length);
        }
      }
    } finally {
      cancel();
    }
  }

  /** It is never left to reconnect by itself: its idea of where it was does not survive a ticket that has run out. */
  async #source(subscription: Subscription, signal: AbortSignal): Promise<void> {
    const [path, query] = this.#events(subscription);
    const ticket = (await this.http.credential()) === undefined ? undefined : await this.#ticket(subscription.target, signal);
    if (signal.aborted) return;
    const source = new this.http.world.EventSource!(address(this.http.base, path, { ...query, ticket }));
    try {
      await this.#listen(source, subscription, signal).catch((error: unknown) => this.#why(subscription, error, signal));
    } finally {
      source.close();
    }
  }

  /** Until it breaks or is aborted. Heartbeats are not shown to a page, so a silent one is taken for dead. */
  async #listen(source: SourceLike, subscription: Subscription, signal: AbortSignal): Promise<void> {
    const { openMs, silenceMs, pongMs } = this.timing;
    let cancel = (): void => {};
    await new Promise<void>((resolve, reject) => {
      const wait = (ms: number): void => {
        cancel();
        cancel = this.#later(ms, () => reject(unreachable("nothing came for a while")));
      };
      const take = ({ data }: { data?: string }): void => {
        if (data === undefined) return; // `error` is also what a broken connection is called
        wait(silenceMs + pongMs);
        try {
          this.#take(subscription, JSON.parse(data) as Message, data.length);
        } catch (error) {
          reject(error);
        }
      };
      wait(openMs);
      signal.addEventListener("abort", () => resolve());
      source.onopen = () => (wait(silenceMs + pongMs), this.owner.heard(), subscription.confirm());
      source.onerror = ({ data }: { data?: string }) => data === undefined && reject(unreachable("the stream of events has ended"));
      for (const type of TYPES) source.addEventListener(type, take);
    }).finally(() => cancel());
  }

  async #ticket({ kind, name }: Target, signal: AbortSignal): Promise<string> {
    return (await this.http.json<{ ticket: string }>("tickets", {}, { body: { [kind]: name }, signal })).ticket;
  }

  /** An EventSource does not tell why it was refused; a plain request does. */
  async #why(subscription: Subscription, error: unknown, signal: AbortSignal): Promise<never> {
    const { target, question } = subscription;
    if (error instanceof ClientError && error.code !== "unreachable") throw error;
    await this.http.json(pathOf(target), { ...queryOf(question), limit: "1" }, { signal });
    throw error;
  }

  #later(ms: number, run: () => void): () => void {
    return this.http.world.later(run, ms);
  }

  // Asking again and again

  async #poll(subscription: Subscription, signal: AbortSignal): Promise<void> {
    for (let first = true; ; first = false) {
      const crowded = this.#open.size - this.#streams.size > 2;
      const waitS = first || crowded ? FIRST_WAIT_S : WAIT_S;
      for (const message of await this.#ask(subscription, waitS, signal)) {
        this.#take(subscription, message, JSON.stringify(message).length);
      }
      this.owner.heard();
      subscription.confirm();
      if (crowded) await new Promise<void>((resolve) => this.#later(TURN_MS, resolve));
      if (signal.aborted) return;
    }
  }

  async #ask(subscription: Subscription, waitS: number, signal: AbortSignal): Promise<Message[]> {
    const { target, question, position } = subscription;
    const [path, query, wait] = [pathOf(target), queryOf(question), String(waitS)];
    const extra = { signal, timeoutMs: waitS * 1000 + this.timing.pongMs };
    const since = position ?? undefined;
    const asked = target.events ? { ...query, after: since, wait } : { ...query, since, wait: since && wait };
    const { rows, messages, events, position: at = "", next = "" } = (await this.http.json<Polled | null>(path, asked, extra)) ?? {};
    if (rows) return [{ type: "snapshot", position: at, rows }];
    if (events) return next === position ? [] : [{ type: "events", position: next, events }];
    return messages ?? [];
  }
}
