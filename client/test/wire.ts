// A real HTTP server that speaks the reader's part of the wire contract as a test says: frames, streams, refusals, silence.
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export type Said = Record<string, unknown> & { type: string; id?: string };

/** One WebSocket of a client, seen from the server. */
export class Peer {
  readonly said: Said[] = [];
  readonly protocols: string;
  open = true;
  /** Whether pings are answered. */
  alive = true;
  #rest: Buffer = Buffer.alloc(0);

  constructor(
    readonly socket: Socket,
    request: IncomingMessage,
    private readonly heard: (peer: Peer, said: Said) => void,
  ) {
    this.protocols = request.headers["sec-websocket-protocol"] ?? "";
    const accept = createHash("sha1").update(`${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
    const protocol = this.protocols ? "Sec-WebSocket-Protocol: penstock\r\n" : "";
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n${protocol}Sec-WebSocket-Accept: ${accept}\r\n\r\n`);
    socket.on("data", (data) => this.#take(data));
    socket.on("close", () => (this.open = false));
    socket.on("error", () => {});
  }

  say(message: object): void {
    if (this.open) this.socket.write(frame(1, Buffer.from(JSON.stringify(message))));
  }

  close(code: number, reason = ""): void {
    this.socket.end(frame(8, Buffer.concat([Buffer.from([code >> 8, code & 255]), Buffer.from(reason)])));
  }

  cut(): void {
    this.socket.destroy();
  }

  /** The newest subscribe message, of this view if one is named. */
  asked(name?: string): Said | undefined {
    return this.said.findLast((said) => said.type === "subscribe" && (name === undefined || said["view"] === name || said["stream"] === name));
  }

  #take(data: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, data]);
    for (let read = unframed(this.#rest); read; read = unframed(this.#rest)) {
      this.#rest = read.rest;
      if (read.kind === 8) return void this.socket.end(frame(8, read.data));
      if (read.kind !== 1) continue;
      const said = JSON.parse(read.data.toString()) as Said;
      if (said.type !== "ping") this.said.push(said);
      else if (this.alive) this.say({ ...said, type: "pong" });
      this.heard(this, said);
    }
  }
}

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: Record<string, string>;
  readonly key: string | undefined;
  readonly body: string;
  readonly response: ServerResponse;
}

export class Wire {
  readonly peers: Peer[] = [];
  readonly requests: Asked[] = [];
  /** Called for each message of a socket. */
  heard: (peer: Peer, said: Said) => void = () => {};
  /** Answers a request; what it returns is sent as JSON, unless it is undefined and the response was used. */
  answer: (asked: Asked) => unknown = () => ({});
  /** Whether sockets get through. */
  socketsAllowed = true;
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => void this.#serve(request, response));
    this.#server.on("upgrade", (request: IncomingMessage, socket: Socket) => {
      if (!this.socketsAllowed) return void socket.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
      this.peers.push(new Peer(socket, request, (peer, said) => this.heard(peer, said)));
    });
  }

  static async open(port = 0): Promise<Wire> {
    const wire = new Wire();
    await new Promise<void>((resolve) => wire.#server.listen(port, "127.0.0.1", resolve));
    return wire;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get last(): Peer {
    return this.peers.at(-1)!;
  }

  async close(): Promise<void> {
    for (const peer of this.peers) peer.cut();
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(incoming.url ?? "", this.url);
    let body = "";
    for await (const part of incoming) body += String(part);
    const asked: Asked = {
      method: incoming.method ?? "",
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      key: incoming.headers.authorization,
      body,
      response,
    };
    this.requests.push(asked);
    const answer = this.answer(asked);
    if (answer !== undefined) response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
  }
}

/** Refuses a request as the server does. */
export function refuse(asked: Asked, status: number, code: string): undefined {
  const body = JSON.stringify({ error: { code, message: `it is ${code}`, detail: null, hint: null } });
  asked.response.writeHead(status, { "Content-Type": "application/json" }).end(body);
}

/** Begins a stream of events; what it returns writes one. */
export function streaming(asked: Asked): (type: string | null, data: Record<string, unknown>) => void {
  asked.response.writeHead(200, { "Content-Type": "text/event-stream" });
  asked.response.write("retry: 1000\n\n");
  return (type, data) => {
    const id = "position" in data ? `id: ${data["position"] as string}\n` : "";
    asked.response.write(type === null ? `${id}\n` : `${id}event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
  };
}

function frame(kind: number, data: Buffer): Buffer {
  const { length } = data;
  const head = length < 126 ? Buffer.from([0x80 | kind, length]) : length < 65536 ? Buffer.from([0x80 | kind, 126, length >> 8, length & 255]) : Buffer.alloc(10);
  if (length >= 65536) (head.set([0x80 | kind, 127]), head.writeBigUInt64BE(BigInt(length), 2));
  return Buffer.concat([head, data]);
}

/** A client's frame, which is masked and short. */
function unframed(data: Buffer): { kind: number; data: Buffer; rest: Buffer } | null {
  if (data.length < 6) return null;
  const short = data[1]! & 127;
  const start = short === 126 ? 4 : 2;
  const length = short === 126 ? data.readUInt16BE(2) : short;
  if (data.length < start + 4 + length) return null;
  const mask = data.subarray(start, start + 4);
  const body = Buffer.from(data.subarray(start + 4, start + 4 + length).map((byte, n) => byte ^ mask[n % 4]!));
  return { kind: data[0]! & 15, data: body, rest: data.subarray(start + 4 + length) };
}
