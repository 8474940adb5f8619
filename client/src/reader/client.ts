// What a program calls to read: one client is one connection to one server, however many views and streams it follows.
import { Backoff } from "../backoff.js";
import { checksum } from "./checksum.js";
import { Connection, type Connected } from "./connection.js";
import type { Batch, EventBatch, Position, Row } from "./contract.js";
import { ClientError, closedError } from "./errors.js";
import { Http, type Key } from "./http.js";
import { IndexedDbStore } from "./indexed-db-store.js";
import { entryName, Keeping, type Known } from "./keeping.js";
import type { Timing, Transport } from "./link.js";
import { Live } from "./live.js";
import { pathOf, type Question, queryOf, type Since, type Target } from "./question.js";
import { quietly } from "./quietly.js";
import { MemoryStore, type Store, WebStore } from "./store.js";
import { type Manner, type Reader, Subscription, type Told } from "./subscription.js";
import { Watch } from "./watch.js";
import { type SocketConstructor, type SourceConstructor, surroundings, type World } from "./world.js";

export type { Connected } from "./connection.js";
export type { Batch, Behind, EventBatch, Json, Position, Problem, Row } from "./contract.js";
export { ClientError } from "./errors.js";
export type { Key } from "./http.js";
export { IndexedDbStore } from "./indexed-db-store.js";
export type { Timing, Transport } from "./link.js";
export { Live, type Listener, type RowKey } from "./live.js";
export type { Question } from "./question.js";
export { canonical, keyOf } from "./row-key.js";
export { MemoryStore, type Store, WebStore } from "./store.js";
export type { State } from "./subscription.js";
export { Watch } from "./watch.js";
export type { World } from "./world.js";

export interface ClientOptions extends Partial<Timing> {
  /** An API key or a JWT, or a function that gives the one to use now. */
  key?: Key;
  /** Where what is known outlives a reload. Default: `memory`, so that nothing does. */
  store?: "memory" | "session" | "local" | "indexeddb" | Store;
  /** Whose rows are kept, where several people use a browser. Default: made from the key; with a function as key nothing is kept without it. */
  who?: string;
  /** In which order to try them. Default: `["websocket", "events", "poll"]`, as far as they are there. */
  transports?: readonly Transport[];
  /** For where they are not global: Node before 22 has no WebSocket, and no Node has an EventSource. */
  WebSocket?: SocketConstructor;
  EventSource?: SourceConstructor;
  /** Whether a page that nobody looks at lets a broken connection be until it is shown again. Default: false. */
  restWhenHidden?: boolean;
  /** Called when `state` is another one. */
  onState?: (client: Client) => void;
  /** Time, chance and network, for tests. */
  world?: Partial<World>;
}

export interface GetOptions extends Question {
  /** One row: the value of a single key column, or an object of all of them. */
  key?: Row[string];
  /** The ack of a `POST`: answer when the view has absorbed that event. */
  after?: string;
  /** A position: answer when it is reached, so that reads never go back. */
  atLeast?: Position;
  /** Seconds to wait for these. */
  wait?: number;
}

export interface Answer<R> {
  readonly view: string;
  readonly position: Position;
  readonly frontier: Record<string, Position>;
  readonly rows: R[];
}

interface Following<B> {
  /** Go on from here instead of with a snapshot. */
  since?: Since;
  /** Keep the position of the last handled batch in the store under this name, and go on from there after a reload. */
  keep?: string;
  /** Called with each batch, the next when it is done; without it, loop over the result. */
  onBatch?: (batch: B) => void | Promise<void>;
  /** Called when `state`, `lag` or `position` is another one. */
  onMove?: () => void;
  /** Bytes of messages that may wait for a slow loop or callback. Default: 4 MiB. */
  queueBytes?: number;
}

export interface WatchOptions<R extends Row = Row> extends Question, Manner, Following<Batch<R>> {
  /** With a `name`: acknowledge each batch once it is handled (default), or only what `ack` is called for. */
  ack?: "handled" | "manual";
}

export interface StreamOptions<E extends Row = Row> extends Pick<Question, "where" | "params" | "select">, Manner, Following<EventBatch<E>> {
  ack?: "handled" | "manual";
}

export interface LiveOptions extends Question, Pick<Manner, "pace"> {
  /** The key's columns, if they are known; else the server is asked. */
  key?: readonly string[];
  /** Whether the rows are kept in the client's store. Default: true. */
  keep?: boolean;
}

/** A view or a stream by its name, or a channel of one. */
export type Named = string | { channel: string };

interface Kept {
  save(): void;
  close(): void;
}

const QUEUE_BYTES = 4 * 1024 ** 2;
const TIMING: Timing = { openMs: 10_000, silenceMs: 30_000, pongMs: 10_000, backoffMostMs: 10_000 };

/** A client of the server at `url`. It connects with its first subscription. */
export function connect(url: string | URL, options: ClientOptions = {}): Client {
  return new Client(String(url), options);
}

export class Client {
  readonly #http: Http;
  readonly #connection: Connection;
  readonly #store: Store;
  readonly #who: string | null;
  readonly #open = new Set<Kept>();
  /** What ends a pause between two tries, at once. */
  readonly #pauses = new Set<() => void>();

  constructor(url: string, options: ClientOptions) {
    const { WebSocket, EventSource, key, who } = options;
    const world = surroundings({ ...(WebSocket && { WebSocket }), ...(EventSource && { EventSource }), ...options.world });
    const transports = (options.transports ?? ["websocket", "events", "poll"]).filter((name) => name !== "websocket" || world.WebSocket);
    this.#http = new Http(url, key, world);
    this.#store = storeOf(options.store);
    this.#who = who ?? (key === undefined ? "" : typeof key === "string" ? checksum(key) : null);
    this.#connection = new Connection(
      this.#http,
      transports,
      { ...TIMING, ...options },
      options.restWhenHidden ?? false,
      () => quietly(() => options.onState?.(this)),
      () => this.save(),
    );
  }

  get state(): Connected {
    return this.#connection.state;
  }

  /** Why it is not connected, or null. */
  get error(): ClientError | null {
    return this.#connection.error;
  }

  /** What carries the subscriptions. */
  get transport(): Transport {
    return this.#connection.transport;
  }

  /** The view's rows at one moment. */
  async get<R extends Row = Row>(view: Named, options: GetOptions = {}): Promise<Answer<R>> {
    const { key, after, atLeast, wait } = options;
    const query = {
      ...queryOf(options),
      key: key === undefined ? undefined : typeof key === "string" ? key : JSON.stringify(key),
      after,
      at_least: atLeast,
      wait: wait === undefined ? undefined : String(wait),
    };
    return this.read(pathOf(targetOf(view)), query, { timeoutMs: ((wait ?? 5) + 10) * 1000 });
  }

  /** The view's batches: a snapshot, then every change. */
  watch<R extends Row = Row>(view: Named, options: WatchOptions<R> = {}): Watch<Batch<R>> {
    return this.#watch(targetOf(view), options);
  }

  /** The stream's events, from its beginning unless `since` says otherwise. */
  stream<E extends Row = Row>(stream: Named, options: StreamOptions<E> = {}): Watch<EventBatch<E>> {
    return this.#watch(targetOf(stream, "stream"), options);
  }

  /** The view's rows as a Map that is kept current. */
  live<R extends Row = Row>(view: Named, options: LiveOptions = {}): Live<R> {
    const target = targetOf(view);
    let asked: Question = options;
    const live = new Live<R>(
      {
        begin: (reader, known) => this.#begin(target, asked, known?.position ?? null, { pace: options.pace }, reader),
        end: (subscription) => this.#end(subscription, live),
        change: (subscription, question) => (this.#open.add(live), this.#change(subscription, (asked = question))),
        key: () => this.#keyOf(target),
        keeping: (known) => this.#keeping(known, options.keep === false ? undefined : "", target, options),
        entryName: (question) => this.#entryName(target, question),
      },
      options.key,
    );
    this.#open.add(live);
    return live;
  }

  /** One JSON document of the server, by its path. */
  async read<T>(path: string, query: Record<string, string | undefined> = {}, extra: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<T> {
    return this.#http.json<T>(path, query, extra);
  }

  /** Connects now and stays connected, also without a subscription. */
  connect(): void {
    this.#connection.hold();
  }

  /** Looks whether the server still answers, because something makes one doubt it. */
  check(): void {
    this.#connection.suspect();
  }

  /** Writes what is known into the store, now; a page that goes away does so by itself. */
  save(): void {
    for (const each of this.#open) each.save();
  }

  /** Ends all subscriptions and the connection. */
  close(): void {
    this.save();
    for (const each of [...this.#open]) each.close();
    this.#connection.close();
    for (const end of this.#pauses) end();
  }

  #watch<B extends Told>(target: Target, options: Question & Manner & Following<B> & { ack?: "handled" | "manual" }): Watch<B> {
    const { name, pace, keep, since = target.events && name === undefined ? "start" : null } = options;
    const manner: Manner = { name, pace };
    let asked: Question = options;
    const { world } = this.#http;
    const known = (): { position: Position } | null => (watch.position === null ? null : { position: watch.position });
    const keeping = this.#keeping(known, keep, target, options);
    const begin = async (reader: Reader): Promise<Subscription> => {
      const kept = (await keeping?.load(true))?.position ?? since;
      const from = kept === "end" ? await this.#endOf(target) : kept;
      return this.#begin(target, asked, asked === options ? from : null, manner, reader);
    };
    const connection = this.#connection;
    const watch: Watch<B> = new Watch<B>(
      {
        begin,
        end: (subscription) => this.#end(subscription, watch),
        rest: (subscription) => connection.remove(subscription),
        goOn: (subscription) => connection.add(subscription),
        change: (subscription, question) => (keeping?.rename(this.#entryName(target, question, keep)), this.#change(subscription, (asked = question))),
        tell: (fields) => connection.tell(fields),
        later: (run, ms) => world.later(run, ms),
        keeping,
        manner,
      },
      options.queueBytes ?? QUEUE_BYTES,
      name !== undefined && options.ack !== "manual",
      options.onMove,
      options.onBatch,
    );
    this.#open.add(watch);
    return watch;
  }

  #begin(target: Target, question: Question, since: Since | null, manner: Manner, reader: Reader): Subscription {
    const subscription = new Subscription(target, question, since, manner, reader, () => this.#http.world.now());
    this.#connection.add(subscription);
    return subscription;
  }

  #end(subscription: Subscription | null, of: Kept): void {
    if (subscription) this.#connection.remove(subscription);
    this.#open.delete(of);
  }

  /** Under a new id, so that a late answer to the old question cannot be taken for one to the new. */
  #change(subscription: Subscription | null, question: Question): void {
    if (!subscription) return;
    this.#connection.remove(subscription);
    subscription.change(question);
    this.#connection.add(subscription);
  }

  /** The end of a stream is made a position at once, so that a break before the first event leaves no gap. */
  async #endOf(target: Target): Promise<Position> {
    return this.#untilTold(async () => (await this.#http.json<{ next: Position }>(pathOf(target), { after: "end", limit: "1" })).next);
  }

  async #keyOf(target: Target): Promise<string[]> {
    return this.#untilTold(async () => {
      const list = await this.#http.json<Record<string, ({ key: string[] } & Record<string, string | string[]>)[]>>(`${target.kind}s`);
      const found = list[`${target.kind}s`]?.find((each) => each[target.kind] === target.name);
      if (!found) throw new ClientError({ code: `unknown_${target.kind}`, message: `there is no ${target.kind} '${target.name}'` });
      return found.key;
    });
  }

  async #untilTold<T>(ask: () => Promise<T>): Promise<T> {
    const { world } = this.#http;
    const connection = this.#connection;
    const backoff = new Backoff(connection.timing.backoffMostMs, () => world.random());
    while (!connection.closed) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof ClientError) || !error.passing) throw error;
        if (!connection.closed) await this.#pause(backoff.pauseMs(error.afterMs));
      }
    }
    throw closedError();
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => (cancel(), this.#pauses.delete(end), resolve());
      const cancel = this.#http.world.later(end, ms);
      this.#pauses.add(end);
    });
  }

  /** None without a name, and none where nobody knows whose it would be. */
  #keeping(known: () => Known | null, name: string | undefined, target: Target, question: Question): Keeping | null {
    if (this.#who === null || name === undefined) return null;
    return new Keeping(this.#store, this.#entryName(target, question, name), this.#http.world, known);
  }

  #entryName(target: Target, question: Question, name?: string): string {
    return entryName(this.#http.base, this.#who!, target, question, name);
  }
}

function targetOf(named: Named, kind: "view" | "stream" = "view"): Target {
  const events = kind === "stream";
  return typeof named === "string" ? { kind, name: named, events } : { kind: "channel", name: named.channel, events };
}

/** Where the storage of a browser is not there or not allowed, it is memory. */
function storeOf(chosen: ClientOptions["store"] = "memory"): Store {
  if (typeof chosen === "object") return chosen;
  try {
    if (chosen === "indexeddb" && typeof indexedDB !== "undefined") return new IndexedDbStore();
    if (chosen === "local") return new WebStore(localStorage);
    if (chosen === "session") return new WebStore(sessionStorage);
  } catch {
    // a page without storage throws at the mere sight of it
  }
  return new MemoryStore();
}
