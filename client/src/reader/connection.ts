// Keeps one link to the server open and every subscription on it alive, so that nobody else has to think about connections.
//
// 1. A broken link is tried again after a random pause that grows, at once when the network is back, the page is shown or the machine
//    wakes up.
// 2. A WebSocket that fails twice where a plain request gets through gives way to Server-Sent Events, those to polling; positions
//    go over.
// 3. Whoever is told to stay away stays away, unless there is another key to show.
import { Backoff } from "../backoff.js";
import { closedError, type ClientError, unreachable } from "./errors.js";
import type { Http } from "./http.js";
import { HttpLink } from "./http-link.js";
import type { Link, Owner, Timing, Transport } from "./link.js";
import { address } from "./question.js";
import { SocketLink } from "./socket.js";
import type { Subscription } from "./subscription.js";

export type Connected = "connecting" | "live" | "offline";

const BLOCKED_TIMES = 2;
const AGAIN_MS = 300_000; // after that a transport that was given up is tried again
const WAKE_PONG_MS = 3_000;
const DRIFT_MS = 5_000;
const HUNG_MS = 1_000;
const LINGER_MS = 1_000;

export class Connection implements Owner {
  state: Connected = "connecting";
  error: ClientError | null = null;
  closed = false;
  /** What carries the subscriptions now. */
  transport: Transport;
  readonly #subscriptions = new Set<Subscription>();
  readonly #backoff: Backoff;
  readonly #unlisten: () => void;
  #link: Link | null = null;
  #opening = false;
  #up = false;
  #heard = false;
  #hold = false;
  #failures = 0;
  #blocked = 0;
  #gaveUpAt = -Infinity;
  #startedAt = -Infinity;
  #asking = false;
  #refusedKey: string | undefined;
  #shownKey: string | undefined;
  #count = 0;
  #waiting: (() => void) | null = null;
  #drift: (() => void) | null = null;
  readonly #pauses = new Map<Subscription, () => void>();

  constructor(
    private readonly http: Http,
    private readonly transports: readonly Transport[],
    readonly timing: Timing,
    private readonly restWhenHidden: boolean,
    private readonly onState: () => void,
    leave: () => void,
  ) {
    this.transport = transports[0]!;
    this.#backoff = new Backoff(timing.backoffMostMs, () => http.world.random());
    this.#unlisten = http.world.listen(() => this.wake(), leave);
  }

  /** Stay connected also without a subscription. */
  hold(): void {
    this.#hold = true;
    this.open();
  }

  add(subscription: Subscription): void {
    if (this.closed) return subscription.fail(closedError());
    this.#subscriptions.add(subscription);
    subscription.id = `s${++this.#count}`;
    subscription.connected(this.state);
    if (this.#up) this.#link?.ask(subscription);
    else this.open();
  }

  remove(subscription: Subscription): void {
    this.#pauses.get(subscription)?.();
    this.#pauses.delete(subscription);
    if (!this.#subscriptions.delete(subscription)) return;
    this.#link?.drop(subscription);
    if (this.#idle) this.http.world.later(() => this.#rest(), LINGER_MS);
  }

  tell(fields: Record<string, unknown>): void {
    if (this.#up) this.#link?.tell(fields);
  }

  close(): void {
    this.closed = true;
    this.#unlisten();
    this.#stop();
    this.#failAll(closedError());
  }

  /** Connects now, unless it is or is about to be. */
  open(): void {
    if (this.#link || this.#opening || this.closed) return;
    this.#waiting?.();
    this.#waiting = null;
    this.#opening = true;
    this.#notice(this.http.world.now());
    this.http.credential().then(
      (key) => this.#start(key),
      (error: unknown) => ((this.#opening = false), this.#pause(unreachable(`there is no key: ${String(error)}`))),
    );
  }

  /** The network is back, the page is shown, or the machine has slept: what looks alive may be dead, and a pause is over. */
  wake(): void {
    if (this.closed || this.#idle) return;
    this.#backoff.succeeded();
    this.#gaveUpAt = -Infinity;
    if (this.#up) return this.#link?.check(WAKE_PONG_MS);
    if (this.http.world.now() - this.#startedAt > HUNG_MS) {
      this.#link?.close(); // begun before, it may hang
      this.#link = null;
    }
    this.open();
  }

  /** Somebody else has found out that the server does not answer. */
  suspect(): void {
    if (this.#up) this.#link?.check(WAKE_PONG_MS);
  }

  // What the link says

  opened(link: Link): void {
    if (link !== this.#link) return;
    this.#up = true;
    if (this.transport === "websocket") this.#failures = this.#blocked = 0;
    this.#become("live", null);
    for (const cancel of this.#pauses.values()) cancel();
    this.#pauses.clear();
    for (const subscription of this.#subscriptions) link.ask(subscription);
  }

  heard(): void {
    this.#heard = true;
    this.#failures = this.#blocked = 0;
    this.#backoff.succeeded();
  }

  problem(subscription: Subscription, error: ClientError): void {
    if (!this.#subscriptions.has(subscription)) return;
    if (error.lostPosition && subscription.position !== null) {
      subscription.lose(error.message);
      this.#askAgain(subscription);
    } else if (error.passing) {
      subscription.connected("offline");
      this.#pauses.set(subscription, this.http.world.later(() => this.#askAgain(subscription), this.#backoff.pauseMs(error.afterMs ?? 1000)));
    } else {
      this.remove(subscription); // also at the server: what was refused may have been an ack or a pace
      subscription.fail(error);
    }
  }

  ended(link: Link, { error, again }: { error: ClientError; again: boolean }): void {
    if (link !== this.#link) return;
    const worked = this.#up && (this.#heard || this.transport === "websocket"); // a stream can be blocked where requests pass
    this.#link = null;
    this.#up = false;
    if (!again) return this.#refused(error);
    this.#pause(error);
    if (!worked) void this.#askWhy();
  }

  // Coming back

  #start(key: string | undefined): void {
    this.#opening = false;
    if (this.#link || this.closed) return;
    if (key !== undefined && key === this.#refusedKey) return this.#pause(this.error);
    this.#shownKey = key;
    this.#heard = false;
    this.#startedAt = this.http.world.now();
    if (this.http.world.now() - this.#gaveUpAt > AGAIN_MS) this.transport = this.transports[0]!;
    const { world, base } = this.http;
    this.#link =
      this.transport === "websocket"
        ? new SocketLink(address(base, "socket").replace(/^http/, "ws"), key, world, this.timing, this)
        : new HttpLink(this.transport, this.http, this.timing, this);
  }

  /** A browser does not tell why a WebSocket did not open; a plain request does, and shows whether anything gets through. */
  async #askWhy(): Promise<void> {
    if (this.#asking || (this.#failures > BLOCKED_TIMES && this.#failures % 5 > 0)) return; // each leaves a line in the page's console
    const { transport } = this;
    this.#asking = true;
    const why = await this.http.json("views").then(() => null, (told: ClientError) => told);
    this.#asking = false;
    if (this.closed || this.#up || this.transport !== transport) return;
    if (why?.refused || why?.code === "forbidden" || why?.code === "foreign_origin") this.#refused(why);
    else if (!why) this.#giveWay();
  }

  #giveWay(): void {
    const next = this.transports[this.transports.indexOf(this.transport) + 1];
    if (++this.#blocked < BLOCKED_TIMES || !next) return;
    this.#blocked = 0;
    this.#gaveUpAt = this.http.world.now();
    this.transport = next;
  }

  #pause(error: ClientError | null): void {
    this.#become(this.#failures === 0 ? "connecting" : "offline", error);
    this.#failures += 1;
    if (this.#idle) return;
    const pauseMs = this.#backoff.pauseMs(error?.afterMs);
    this.#waiting?.();
    this.#waiting = this.http.world.later(() => {
      if (!this.restWhenHidden || !this.http.world.hidden()) this.open();
    }, pauseMs);
  }

  /** With a key that can change one may come back, but not with the same one. */
  #refused(error: ClientError): void {
    if (this.http.changes && error.refused) {
      this.#refusedKey = this.#shownKey;
      return this.#pause(error);
    }
    this.#become("offline", error);
    this.#failAll(error);
    this.#stop();
  }

  #failAll(error: ClientError): void {
    for (const subscription of [...this.#subscriptions]) (this.#subscriptions.delete(subscription), subscription.fail(error));
  }

  /** Under a new id, so that nothing of the old one that is on its way can come twice. */
  #askAgain(subscription: Subscription): void {
    this.#pauses.delete(subscription);
    if (this.#up) (this.remove(subscription), this.add(subscription));
  }

  get #idle(): boolean {
    return this.#subscriptions.size === 0 && !this.#hold;
  }

  #rest(): void {
    if (this.#idle) this.#stop();
  }

  #stop(): void {
    this.#waiting?.();
    this.#drift?.();
    this.#waiting = this.#drift = null;
    this.#link?.close();
    this.#link = null;
    this.#up = false;
  }

  /** A timer that comes much too late means that the machine has slept. */
  #notice(at: number): void {
    this.#drift?.();
    this.#drift = this.http.world.later(() => {
      const now = this.http.world.now();
      if (now - at > 2 * DRIFT_MS) this.wake();
      this.#notice(now);
    }, DRIFT_MS);
  }

  #become(state: Connected, error: ClientError | null): void {
    const same = state === this.state && error?.code === this.error?.code;
    this.error = error;
    if (state !== "live") for (const subscription of this.#subscriptions) subscription.connected(state);
    this.state = state;
    if (!same) this.onState();
  }
}
