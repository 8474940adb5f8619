// Shows a view's chart, and where two kinds fit, lets the reader switch between them.
import { element } from "../element";
import { chartsOf, type Chart } from "../logic/chart-choice";
import { roleOf } from "../logic/columns";
import { barsOf } from "../logic/series";
import type { Client } from "../server/client";
import type { Row, View } from "../server/documents";
import { BARS, BarsPanel } from "./bars";
import { History } from "./history";
import { LinesPanel } from "./lines";

const WORDS: Record<Chart["kind"], string> = { lines: "Over time", bars: "Latest" };

interface Drawn {
  root: HTMLElement;
  show(rows: Row[]): void;
  close(): void;
}

export class ChartPanel {
  private readonly charts: Chart[];
  private drawn: Drawn | null = null;
  private rows: Row[] = [];
  private readonly place = element("div", { class: "chart-place" });
  readonly root: HTMLElement | null;

  constructor(private readonly view: View, private readonly client: Client, private readonly repaint: (job: () => void) => void) {
    this.charts = chartsOf(view);
    const first = this.charts[0];
    this.root = first ? element("figure", { class: "chart", "data-chart": first.kind }, this.caption(), this.place) : null;
    if (first) this.pick(first);
  }

  show(rows: Row[]): void {
    this.rows = rows;
    this.drawn?.show(rows);
  }

  close(): void {
    this.drawn?.close();
  }

  private pick(chart: Chart): void {
    this.drawn?.close();
    this.drawn = chart.kind === "lines" ? this.lines(chart) : this.bars(chart);
    this.place.replaceChildren(this.drawn.root);
    this.root?.setAttribute("data-chart", chart.kind);
    this.drawn.show(this.rows);
  }

  private bars(chart: Extract<Chart, { kind: "bars" }>): Drawn {
    const panel = new BarsPanel(`${chart.number} by ${chart.names.join(" and ")}`);
    return { root: panel.root, show: (rows) => panel.show(barsOf(rows, chart, BARS)), close: () => undefined };
  }

  private lines(chart: Extract<Chart, { kind: "lines" }>): Drawn {
    const open = this.view.columns.some((column) => column.name === chart.time && roleOf(column) === "window");
    const by = chart.names.length > 0 ? ` by ${chart.names.join(" and ")}` : "";
    const panel = new LinesPanel(`${chart.number}${by} over time; the table holds the same numbers`, open);
    const draw = () => panel.show(history.lines());
    const history = new History(this.view, chart, this.client, () => this.repaint(draw));
    return { root: panel.root, show: (rows) => history.follow(rows, performance.now()), close: () => (history.close(), panel.close()) };
  }

  private caption(): HTMLElement {
    const number = this.charts[0]?.number ?? "";
    const names = this.charts[0]?.names ?? [];
    const title = element("span", { class: "chart-title" }, element("b", {}, number), names.length > 0 ? ` by ${names.join(", ")}` : "");
    return element("figcaption", {}, title, this.charts.length > 1 ? this.choices() : null);
  }

  private choices(): HTMLElement {
    const group = element("div", { class: "switch", role: "radiogroup", "aria-label": `Chart of ${this.view.view}` });
    this.charts.forEach((chart, i) => {
      const input = element("input", { type: "radio", name: `chart-${this.view.view}`, checked: i === 0 });
      input.addEventListener("change", () => this.pick(chart));
      group.append(element("label", {}, input, element("span", {}, WORDS[chart.kind])));
    });
    return group;
  }
}
