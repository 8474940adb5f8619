// A real HTTP server that takes numbers as the door does, and gives other answers when a test says so.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { gunzipSync } from "node:zlib";

export interface Request {
  readonly producer: string;
  readonly epoch: number;
  readonly sequence: number;
  readonly sent: number;
  readonly key: string | undefined;
  readonly packed: boolean;
  readonly raw: string;
  readonly events: Record<string, unknown>[];
}

/** `taken, then cut`: the door takes the request, and its answer is lost. */
export type Answer =
  | "cut"
  | "taken, then cut"
  | { status: number; body?: unknown; text?: string; headers?: Record<string, string>; hold?: Promise<void> };

export function refusal(status: number, code: string, headers: Record<string, string> = {}): Answer {
  return { status, body: { error: { code, message: `it is ${code}`, detail: null, hint: null } }, headers };
}

export class Door {
  readonly answers: Answer[] = [];
  readonly requests: Request[] = [];
  readonly events: Record<string, unknown>[] = [];
  /** Waited for before each request is looked at. */
  gate: Promise<void> = Promise.resolve();
  /** What GET answers, for pages. */
  readonly pages = new Map<string, string>();
  readonly #marks = new Map<string, { epoch: number; sequence: number }>();
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => void this.#serve(request, response));
  }

  static async open(): Promise<Door> {
    const door = new Door();
    await new Promise<void>((resolve) => door.#server.listen(0, "127.0.0.1", resolve));
    return door;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    if (incoming.method === "GET") {
      const page = this.pages.get(incoming.url ?? "");
      const type = incoming.url?.endsWith(".js") ? "text/javascript" : "text/html";
      response.writeHead(page === undefined ? 404 : 200, { "Content-Type": type }).end(page ?? "");
      return;
    }
    const parts: Buffer[] = [];
    for await (const part of incoming) parts.push(part as Buffer);
    const request = read(incoming, Buffer.concat(parts));
    this.requests.push(request);
    const answer = this.answers.shift();
    await this.gate;
    if (answer === "cut") return void incoming.socket.destroy();
    if (answer && answer !== "taken, then cut") {
      await answer.hold;
      const body = answer.text ?? JSON.stringify(answer.body ?? null);
      response.writeHead(answer.status, answer.headers).end(answer.status === 204 ? undefined : body);
      return;
    }
    const [status, body, headers] = this.#take(request);
    if (answer === "taken, then cut") return void incoming.socket.destroy();
    response.writeHead(status, headers).end(body === null ? undefined : JSON.stringify(body));
  }

  #take(request: Request): [number, unknown, Record<string, string>] {
    const mark = this.#marks.get(request.producer);
    const error = (code: string): unknown => ({ error: { code, message: code, detail: null, hint: null } });
    if (mark && request.epoch < mark.epoch) return [403, error("producer_fenced"), {}];
    const expected = mark?.epoch === request.epoch ? mark.sequence + 1 : 0;
    if (request.sequence > expected) return [409, error("sequence_gap"), { "Producer-Expected-Seq": String(expected) }];
    if (request.sequence < expected) return [204, null, { "Penstock-Ack": "token" }];
    this.#marks.set(request.producer, { epoch: request.epoch, sequence: request.sequence });
    const bad = request.events.flatMap((event, index) => (event["bad"] ? [{ index, reason: "wrong_type", detail: "bad" }] : []));
    this.events.push(...request.events.filter((event) => !event["bad"]));
    const accepted = request.events.length - bad.length;
    const body = { accepted, duplicates: 0, rejected: bad, ack: "token", level: "logged" };
    return [accepted ? 200 : 422, body, { "Penstock-Ack": "token" }];
  }
}

function read(incoming: IncomingMessage, body: Buffer): Request {
  const header = (name: string): string => String(incoming.headers[name]);
  const packed = incoming.headers["content-encoding"] === "gzip";
  const text = (packed ? gunzipSync(body) : body).toString();
  return {
    producer: header("producer-id"),
    epoch: Number(header("producer-epoch")),
    sequence: Number(header("producer-seq")),
    sent: Number(header("penstock-sent")),
    key: incoming.headers.authorization,
    packed,
    raw: body.toString("base64"),
    events: text
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line) as Record<string, unknown>),
  };
}
