// Puts the panels on the page and brings them what the server says: definitions once per connection, status every two seconds.
import { element, write } from "./element";
import * as format from "./logic/format";
import { Freshness } from "./logic/freshness";
import { Painter } from "./painter";
import { ConnectionPanel } from "./panels/connection";
import { FlowsPanel } from "./panels/flows";
import { PipelinePanel } from "./panels/pipeline";
import { PressurePanel } from "./panels/pressure";
import { StreamsPanel } from "./panels/streams";
import { ViewCard } from "./panels/view-card";
import { VitalsPanel } from "./panels/vitals";
import type { Client } from "./server/client";
import { type Definitions, type Place, readDefinitions, rememberedDefinitions } from "./server/definitions";
import type { Status, View } from "./server/documents";
import { readStatus } from "./server/status";

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
  private readonly pressure = new PressurePanel();
  private readonly cards = new Map<string, { definition: string; card: ViewCard }>();

  /** `storage` is where what the app declares is kept for the next page; null: nowhere. */
  constructor(private readonly client: Client, private readonly storage: Place | null) {
    place("connection", this.connection.root);
    place("vitals", this.vitals.root);
    place("problems", this.pressure.root);
    place("problems", this.flows.problems);
    place("pipeline", this.pipeline.root);
    place("streams", this.streams.root);
    place("flows", this.flows.root);
  }

  start(): void {
    const known = rememberedDefinitions(this.storage);
    if (known) this.showDefinitions(known);
    this.client.connect();
    document.addEventListener("visibilitychange", () => void this.poll());
    setInterval(() => void this.poll(), POLL_MS);
    setInterval(() => this.painter.request(() => this.vitals.freshness(this.freshness.percentiles())), FIGURES_MS);
  }

  /** Called by the client whenever its state is another one. */
  became(): void {
    const { state, error } = this.client;
    this.connection.show(state);
    if (state === "live") void this.define();
    if (error?.code === "unauthorized" || error?.code === "forbidden") this.connection.refused();
  }

  /** The server may be a new one with another app: definitions are read anew at each connection. */
  private async define(): Promise<void> {
    try {
      this.showDefinitions(await readDefinitions(this.client, this.storage));
      await this.poll();
    } catch {
      this.client.check();
    }
  }

  private async poll(): Promise<void> {
    if (document.hidden || this.client.state !== "live") return;
    try {
      const status = await readStatus(this.client);
      this.painter.request(() => this.showStatus(status));
    } catch {
      this.client.check();
    }
  }

  private showDefinitions({ views, graph }: Definitions): void {
    this.name(graph.app);
    this.showViews(views);
    this.pipeline.show(graph);
  }

  private name(app: string): void {
    document.title = `${app} · Penstock`;
    write(byId("app"), app);
  }

  private showViews(views: View[]): void {
    const wanted = new Set(views.map((view) => view.view));
    for (const [name, { card }] of this.cards) if (!wanted.has(name)) (card.close(), this.cards.delete(name));
    for (const view of views) {
      const definition = JSON.stringify([view.key, view.columns, view.order_by, view.limit, view.doc, view.keep, view.class, view.how]);
      const held = this.cards.get(view.view);
      if (held?.definition === definition) continue;
      held?.card.close();
      this.cards.set(view.view, { definition, card: new ViewCard(view, this.client, this.painter, this.freshness) });
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
    this.pressure.status(status);
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
