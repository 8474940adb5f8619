// Shows whether the page is live, to eyes and to screen readers, and dims what may be out of date.
import { element, mark, write } from "../element";
import type { Connected } from "../server/client";

const WORDS: Record<Connected, string> = {
  live: "Live",
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

  show(state: Connected): void {
    mark(this.root, "data-connection", state === "live" ? "connected" : state);
    write(this.text, WORDS[state]);
    mark(document.documentElement, "data-offline", state === "offline" ? "" : null);
  }

  /** The server is there, but not for somebody without a key. */
  refused(): void {
    write(this.text, "This server wants a key: add #key=<key> to the address");
  }
}
