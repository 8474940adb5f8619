// What a reader needs of its surroundings: time, chance, the network and the moments at which to look again. Tests bring their own.

export interface SocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(text: string): void;
  close(code?: number, reason?: string): void;
}

export type SocketConstructor = new (url: string, protocols?: string[]) => SocketLike;

export interface SourceLike {
  onopen: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  addEventListener(type: string, listener: (event: MessageEvent<string>) => void): void;
  close(): void;
}

export type SourceConstructor = new (url: string) => SourceLike;

export interface World {
  /** Milliseconds since 1970. */
  now(): number;
  random(): number;
  /** Runs something later, unless what it returns is called before. */
  later(run: () => void, ms: number): () => void;
  fetch: typeof fetch;
  WebSocket: SocketConstructor | undefined;
  EventSource: SourceConstructor | undefined;
  /** Calls `wake` when the network is back or the page is shown, `leave` when the page goes away; returns what ends that. */
  listen(wake: () => void, leave: () => void): () => void;
  hidden(): boolean;
}

export function surroundings(own: Partial<World> = {}): World {
  const here = globalThis as unknown as { WebSocket?: SocketConstructor; EventSource?: SourceConstructor };
  return {
    now: () => Date.now(),
    random: () => Math.random(),
    later: (run, ms) => {
      const timer = setTimeout(run, ms);
      return () => clearTimeout(timer);
    },
    fetch: (...asked) => fetch(...asked),
    WebSocket: here.WebSocket,
    EventSource: here.EventSource,
    listen,
    hidden: () => typeof document !== "undefined" && document.hidden,
    ...own,
  };
}

function listen(wake: () => void, leave: () => void): () => void {
  if (typeof document === "undefined") return () => {};
  const shown = (): void => (document.hidden ? leave() : wake());
  addEventListener("online", wake);
  addEventListener("pageshow", wake);
  addEventListener("pagehide", leave);
  document.addEventListener("visibilitychange", shown);
  return () => {
    removeEventListener("online", wake);
    removeEventListener("pageshow", wake);
    removeEventListener("pagehide", leave);
    document.removeEventListener("visibilitychange", shown);
  };
}
