// What carries subscriptions: the contract of the WebSocket and of its substitutes.
import type { ClientError } from "./errors.js";
import type { Fields } from "./question.js";
import type { Subscription } from "./subscription.js";

export type Transport = "websocket" | "events" | "poll";

/**
 * One try to talk to the server, made when it is constructed. It ends once, by itself or by `close`, and never comes back; whoever
 * owns it makes the next one, and the positions of the subscriptions are all that has to go over.
 */
export interface Link {
  /** Only between `opened` and `ended`. Messages go to `subscription.take`. */
  ask(subscription: Subscription): void;
  drop(subscription: Subscription): void;
  /** What only a socket can carry (`ack`, `pace`); others leave it. */
  tell(fields: Fields): void;
  /** Finds out whether it still lives, and ends itself if not. */
  check(withinMs: number): void;
  /** Ends it without a word to the owner. */
  close(): void;
}

export interface Owner {
  /** Subscriptions can be asked for. */
  opened(link: Link): void;
  /** The server has said something. */
  heard(): void;
  /** One subscription was refused or broke; the link goes on. */
  problem(subscription: Subscription, error: ClientError): void;
  /** `again` is false when it makes no sense to come back with the same credential. */
  ended(link: Link, end: { error: ClientError; again: boolean }): void;
}

export interface Timing {
  /** How long opening may take. Default: 10,000. */
  openMs: number;
  /** How long the server may say nothing before it is asked. Default: 30,000, twice as long as it ever keeps silent about news. */
  silenceMs: number;
  /** How long it may take to answer that. Default: 10,000. */
  pongMs: number;
  /** The longest pause between two tries. Default: 10,000. */
  backoffMostMs: number;
}
