// Parses Server-Sent Events out of a response, piece by piece, where there is no EventSource to do it.

export interface ServerEvent {
  readonly type: string;
  readonly data: string;
  readonly id: string | undefined;
}

export class SseParser {
  #rest = "";
  #type = "";
  #data: string[] = [];
  #id: string | undefined;

  /** The events that this piece completes; a block with an id and no data is one without data. */
  *take(piece: string): Generator<ServerEvent> {
    const lines = (this.#rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line !== "") this.#line(line);
      else {
        const event = this.#complete();
        if (event.data !== "" || event.id !== undefined) yield event;
      }
    }
  }

  #line(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#type = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id") this.#id = value;
  }

  #complete(): ServerEvent {
    const event = { type: this.#type, data: this.#data.join("\n"), id: this.#id };
    this.#type = "";
    this.#data = [];
    this.#id = undefined;
    return event;
  }
}
