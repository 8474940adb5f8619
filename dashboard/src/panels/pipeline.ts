// Draws the app's graph, from sources to views: boxes are links to what they name, edges move while data does.
import { drawing, element, mark, write } from "../element";
import { layout, type Placed } from "../logic/layout";
import * as format from "../logic/format";
import type { Graph, Status } from "../server/documents";

const BOX = { width: 176, height: 62, least: 98 };
const GAP = { along: 64, across: 18 };
const NARROW_PX = 620;
const PADDING_PX = 22; // as in pipeline.css

interface Point {
  x: number;
  y: number;
}

export class PipelinePanel {
  private graph: Graph | null = null;
  private drawn = "";
  private states = new Map<string, string>();
  private rates = new Map<string, number>();
  private notes = new Map<string, HTMLElement>();
  private readonly canvas = element("div", { class: "pipeline-canvas" });
  readonly root = element("div", { class: "card scroll pipeline", tabindex: 0, role: "region", "aria-label": "Pipeline" }, this.canvas);

  constructor() {
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  show(graph: Graph): void {
    this.graph = graph;
    this.draw();
  }

  status(status: Status): void {
    for (const view of status.views) if (view.flow) this.states.set(view.view, view.flow.state);
    for (const flow of status.flows) {
      this.states.set(flow.flow, flow.state);
      if (flow.rate != null) this.rates.set(flow.flow, flow.rate);
    }
    for (const pull of status.pulls ?? []) this.states.set(pull.url, pull.state === "connected" ? "running" : pull.state);
    for (const stream of status.streams) this.rates.set(stream.stream, stream.rates.accepted);
    this.refresh();
  }

  private draw(): void {
    if (!this.graph || this.root.clientWidth === 0) return;
    const upright = this.root.clientWidth < NARROW_PX;
    const sign = JSON.stringify([this.graph, upright, upright && this.root.clientWidth]);
    if (sign === this.drawn) return;
    this.drawn = sign;
    this.notes.clear();
    const placed = layout(this.graph);
    const box = upright ? fitting(placed, this.canvas.parentElement!.clientWidth - 2 * PADDING_PX) : BOX.width;
    const places = positions(placed, upright, box);
    const width = Math.max(...[...places.values()].map((p) => p.x)) + box;
    this.canvas.style.setProperty("--box", `${box}px`);
    mark(this.canvas, "data-upright", upright ? "" : null);
    const height = Math.max(...[...places.values()].map((p) => p.y)) + BOX.height;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const svg = drawing("svg", { width, height, "aria-hidden": "true" });
    for (const { from, to } of this.graph.edges) {
      const [a, b] = [places.get(from), places.get(to)];
      if (!a || !b) continue;
      const path = curve(a, b, upright, box);
      svg.append(drawing("path", { class: "pipe", d: path }), drawing("path", { class: "flowing", d: path, "data-from": from, "data-to": to }));
    }
    const list = element("ol", { "aria-label": "Nodes, from sources to views" });
    for (const item of placed) list.append(this.box(item, places.get(item.node.name) ?? { x: 0, y: 0 }));
    this.canvas.replaceChildren(svg, list);
    this.refresh();
  }

  private box({ node }: Placed, at: Point): HTMLElement {
    const note = element("span", { class: "node-note" });
    this.notes.set(node.name, note);
    const target = node.kind === "view" || node.kind === "table" ? `#view-${node.name}` : node.kind === "stream" || node.kind === "flow" ? `#stream-${node.name}` : null;
    const link = element(
      target ? "a" : "span",
      { class: "node", ...(target ? { href: target } : {}), "data-node": node.name, "data-kind": node.kind, title: node.doc ?? node.name },
      element("span", { class: "node-kind" }, node.kind, note),
      element("span", { class: "node-name" }, node.name),
    );
    const item = element("li", {}, link);
    item.style.transform = `translate(${at.x}px, ${at.y}px)`;
    return item;
  }

  /** Brings states and rates into the drawn boxes without drawing them again. */
  private refresh(): void {
    const given = new Map(this.graph?.nodes.map((node) => [node.name, node.state ?? null]));
    for (const link of this.canvas.querySelectorAll(".node")) {
      const name = link.getAttribute("data-node") ?? "";
      const state = this.states.get(name) ?? given.get(name) ?? null;
      mark(link, "data-state", state);
      const rate = this.rates.get(name);
      const note = this.notes.get(name);
      const halted = state !== null && state !== "running";
      if (note) write(note, halted ? state : rate === undefined ? "" : `${format.rate(rate)}/s`);
    }
    for (const path of this.canvas.querySelectorAll(".flowing")) {
      const [from, to] = [path.getAttribute("data-from") ?? "", path.getAttribute("data-to") ?? ""];
      const moves = (this.rates.get(from) ?? this.rates.get(to) ?? 0) > 0 && !/stopped|retrying/.test(this.states.get(to) ?? "");
      mark(path, "data-moves", moves ? "" : null);
    }
  }
}

/** The width at which the fullest layer fits a narrow screen, within reason; beyond it the panel scrolls. */
function fitting(placed: Placed[], room: number): number {
  const most = Math.max(...placed.map((item) => item.slot)) * 2 + 1;
  return Math.max(BOX.least, Math.min(BOX.width, (room - (most - 1) * GAP.across) / most));
}

function positions(placed: Placed[], upright: boolean, box: number): Map<string, Point> {
  const across = (upright ? box : BOX.height) + GAP.across;
  const along = upright ? BOX.height + GAP.along * 0.7 : BOX.width + GAP.along;
  const least = Math.min(...placed.map((item) => item.slot));
  return new Map(placed.map(({ node, layer, slot }) => {
    const [a, b] = [layer * along, (slot - least) * across];
    return [node.name, upright ? { x: b, y: a } : { x: a, y: b }];
  }));
}

function curve(a: Point, b: Point, upright: boolean, box: number): string {
  if (upright) {
    const [x1, y1, x2, y2] = [a.x + box / 2, a.y + BOX.height, b.x + box / 2, b.y];
    const bend = (y2 - y1) / 2;
    return `M${x1},${y1}C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
  }
  const [x1, y1, x2, y2] = [a.x + BOX.width, a.y + BOX.height / 2, b.x, b.y + BOX.height / 2];
  const bend = (x2 - x1) / 2;
  return `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}
