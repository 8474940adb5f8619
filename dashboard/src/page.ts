// Puts the panels on the page and brings them what the server says: definitions once per connection, status every two seconds.
import { element, write } from "./element";
import * as format from "./logic/format";
import { Freshness } from "./logic/freshness";
import { Painter } from "./painter";
import { ConnectionPanel } from "./panels/connection";
import { FlowsPanel } from "./panels/flows";
import { PipelinePanel } from "./panels/pipeline";
import { StreamsPanel } from "./panels/streams";
import { ViewCard } from "./panels/view-card";
import { VitalsPanel } from "./panels/vitals";
import type { Graph, Status, View } from "./wire/contract";
import { Feed, type Connection, type Surroundings } from "./wire/feed";
import { isRefused, read } from "./wire/read";
import { readStatus } from "./wire/read-status";

const POLL_MS = 2_000;
const FIGURES_MS = 500;

export class Page {
  private readonly painter = new Painter();
  private readonly freshness = new Freshness();
  private readonly connection = new ConnectionPanel();
  private readonly vitals = new VitalsPanel();
  private readonly flows = new FlowsPanel();
  private readonly streams = new StreamsPanel();
  private readonly pipeline = new PipelinePanel();
  private readonly cards = new Map<string, { definition: string; card: ViewCard }>();
  private readonly feed: Feed;
  private connectedOnce = false;

  constructor(world: Surroundings) {
    this.feed = new Feed(world, (state) => this.became(state));
    place("connection", this.connection.root);
    place("vitals", this.vitals.root);
    place("problems", this.flows.problems);
    place("pipeline", this.pipeline.root);
    place("streams", this.streams.root);
    place("flows", this.flows.root);
  }

  start(): void {
    this.feed.connect();
    const wake = () => {
      if (document.hidden) return;
      this.feed.connect();
      void this.poll();
    };
    document.addEventListener("visibilitychange", wake);
    window.addEventListener("online", wake);
    setInterval(() => void this.poll(), POLL_MS);
    setInterval(() => this.painter.request(() => this.vitals.freshness(this.freshness.percentiles())), FIGURES_MS);
  }

  private became(state: Connection): void {
    this.connection.show(state);
    if (state === "connected") void this.define();
    if (state === "offline" && !this.connectedOnce) void this.askWhy();
    this.connectedOnce ||= state !== "connecting"; // whatever it was, it is asked once
  }

  /** A browser does not tell why a WebSocket was refused; a plain request does. */
  private async askWhy(): Promise<void> {
    if (await isRefused("views")) this.connection.refused();
  }

  /** The server may be a new one with another app: definitions are read anew at each connection. */
  private async define(): Promise<void> {
    try {
      const [views, graph] = await Promise.all([read<{ views: View[] }>("views"), read<Graph>("graph")]);
      this.name(graph.app);
      this.showViews(views.views);
      this.pipeline.show(graph);
      await this.poll();
    } catch {
      this.feed.suspect();
    }
  }

  private async poll(): Promise<void> {
    if (document.hidden || this.feed.state !== "connected") return;
    try {
      const status = await readStatus();
      this.painter.request(() => this.showStatus(status));
    } catch {
      this.feed.suspect();
    }
  }

  private name(app: string): void {
    document.title = `${app} · Penstock`;
    write(byId("app"), app);
  }

  private showViews(views: View[]): void {
    const wanted = new Set(views.map((view) => view.view));
    for (const [name, { card }] of this.cards) if (!wanted.has(name)) (card.close(), this.cards.delete(name));
    for (const view of views) {
      const definition = JSON.stringify([view.key, view.columns, view.order_by, view.limit, view.doc, view.keep, view.class]);
      const held = this.cards.get(view.view);
      if (held?.definition === definition) continue;
      held?.card.close();
      this.cards.set(view.view, { definition, card: new ViewCard(view, this.feed, this.painter, this.freshness) });
    }
    const cards = views.map((view) => this.cards.get(view.view)?.card.root).filter((root) => root !== undefined);
    const none = element("p", { class: "card empty" }, "This app declares no view. A function under @app.view becomes one.");
    const body = byId("views");
    if (cards.length !== body.childElementCount || cards.some((card, i) => body.children[i] !== card)) {
      body.replaceChildren(...(cards.length > 0 ? cards : [none]));
    }
  }

  private showStatus(status: Status): void {
    this.vitals.status(status);
    this.flows.status(status);
    this.streams.status(status);
    this.pipeline.status(status);
    for (const view of status.views) this.cards.get(view.view)?.card.status(view);
    const processes = Object.entries(status.processes ?? {}).map(([name, p]) =>
      `${name} ${p.state}${p.restarts ? `, restarted ${p.restarts}×` : ""}`);
    const facts = [status.version ? `Penstock ${status.version}` : "Penstock", status.uptime_s === undefined ? "" : `up ${format.span(status.uptime_s)}`, ...processes];
    write(byId("facts"), facts.filter(Boolean).join("  ·  "));
  }
}

function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no element "${id}"`);
  return found;
}

function place(id: string, panel: HTMLElement): void {
  byId(id).append(panel);
}
