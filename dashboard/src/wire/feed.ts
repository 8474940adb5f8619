// Keeps one WebSocket open and every subscription on it alive, so that the rest of the page never thinks about connections.
//
// 1. A subscription resumes from the last position whose message was applied whole, so only missed changes come again.
// 2. A snapshot in parts reaches its subscriber once, whole; parts of a broken connection are forgotten.
// 3. Console: a refused connection is logged by the browser and cannot be caught, so the page makes one attempt per
//    back-off step, none while hidden, and no other request while it is not connected.
import { backoff } from "./backoff";
import type { Message, Position, Problem, Row, Subscription } from "./contract";

export type Connection = "connecting" | "connected" | "offline";

export interface Subscriber {
  snapshot(rows: Row[]): void;
  changes(upserts: Row[], deletes: Row[], accepted: string | null): void;
  stall?(): void;
  error(problem: Problem): void;
}

/** What the feed needs of the world; tests bring their own. */
export interface Surroundings {
  open(): WebSocket;
  random(): number;
  later(run: () => void, ms: number): () => void;
  hidden(): boolean;
}

interface Held {
  spec: Subscription;
  subscriber: Subscriber;
  since: Position | null;
  parts: Row[];
}

export class Feed {
  state: Connection = "connecting";
  private socket: WebSocket | null = null;
  private attempt = 0;
  private next = 1;
  private cancel: (() => void) | null = null;
  private readonly held = new Map<string, Held>();

  constructor(
    private readonly world: Surroundings,
    private readonly onState: (state: Connection) => void,
  ) {}

  /** Starts a subscription and returns what ends it. */
  subscribe(spec: Subscription, subscriber: Subscriber): () => void {
    const id = `s${this.next++}`;
    this.held.set(id, { spec, subscriber, since: null, parts: [] });
    if (this.state === "connected") this.ask(id);
    return () => {
      if (this.held.delete(id) && this.state === "connected") this.send({ type: "unsubscribe", id });
    };
  }

  /** Connects now: at the start, and when the tab is shown or the network returns. Does nothing while a socket is open or opening. */
  connect(): void {
    if (this.socket) return;
    this.cancel?.();
    this.cancel = null;
    const socket = this.world.open();
    this.socket = socket;
    socket.onopen = () => this.opened();
    socket.onmessage = (event: MessageEvent<string>) => this.take(JSON.parse(event.data) as Message);
    socket.onclose = () => this.closed(socket);
  }

  /** Drops a socket that looks alive but whose server no longer answers; connecting again follows by itself. */
  suspect(): void {
    const socket = this.socket;
    if (!socket || this.state !== "connected") return;
    socket.close();
    this.closed(socket); // the closing handshake of a hung server may take a minute
  }

  private opened(): void {
    this.attempt = 0;
    this.become("connected");
    for (const id of this.held.keys()) this.ask(id);
  }

  private closed(socket: WebSocket): void {
    if (this.socket !== socket) return;
    this.socket = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    this.become(this.attempt === 0 ? "connecting" : "offline");
    const wait = backoff(this.attempt++, () => this.world.random());
    this.cancel = this.world.later(() => {
      if (!this.world.hidden()) this.connect();
    }, wait);
  }

  private become(state: Connection): void {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }

  private ask(id: string): void {
    const held = this.held.get(id);
    if (!held) return;
    held.parts = [];
    this.send({ type: "subscribe", id, ...held.spec, since: held.since });
  }

  private send(message: object): void {
    this.socket?.send(JSON.stringify(message));
  }

  private take(message: Message): void {
    const held = message.id === undefined ? undefined : this.held.get(message.id);
    if (!held) return; // answers to a subscription that was ended meanwhile
    switch (message.type) {
      case "snapshot":
        held.parts.push(...message.rows);
        if ((message.part ?? 1) < (message.parts ?? 1)) return;
        held.since = message.position;
        held.subscriber.snapshot(held.parts);
        held.parts = [];
        return;
      case "changes":
        held.since = message.position;
        held.subscriber.changes(message.upserts, message.deletes, message.accepted ?? null);
        return;
      case "position":
        held.since = message.position;
        return;
      case "reset":
        held.since = null;
        held.parts = [];
        return; // the snapshot that follows replaces the rows; until then the old ones stay on screen
      case "stall":
        held.subscriber.stall?.();
        return;
      case "error":
        held.subscriber.error(message.error);
    }
  }
}
