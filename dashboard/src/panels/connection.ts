// Shows whether the page is live, to eyes and to screen readers, and dims what may be out of date.
import { element, mark, write } from "../element";
import type { Connection } from "../wire/feed";

const WORDS: Record<Connection, string> = {
  connected: "Live",
  connecting: "Connecting",
  offline: "Offline, retrying",
};

export class ConnectionPanel {
  private readonly text = element("span", {}, WORDS.connecting);
  readonly root = element(
    "p",
    { class: "connection", role: "status", "aria-live": "polite", "data-connection": "connecting" },
    element("span", { class: "dot", "aria-hidden": "true" }),
    this.text,
  );

  show(state: Connection): void {
    mark(this.root, "data-connection", state);
    write(this.text, WORDS[state]);
    mark(document.documentElement, "data-offline", state === "offline" ? "" : null);
  }

  /** The server is there, but not for somebody without a key. */
  refused(): void {
    write(this.text, "This server wants a key: add #key=<key> to the address");
  }
}
