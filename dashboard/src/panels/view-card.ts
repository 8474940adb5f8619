// Shows one view: what it says, how well it can be proved, its chart and its rows, kept current by one subscription.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import type { Freshness } from "../logic/freshness";
import { ordering } from "../logic/order";
import { Replica } from "../logic/replica";
import { orderOf, TABLE_ROWS, tableSubscription } from "../logic/subscriptions";
import type { Painter } from "../painter";
import type { Problem, View } from "../wire/contract";
import type { Feed } from "../wire/feed";
import { ChartPanel } from "./chart";
import { problemText } from "./problem";
import { StateBadge } from "./state-badge";
import { TablePanel } from "./table";

const CLASSES: Record<string, string> = {
  exact: "penstock verify can prove every number of this view",
  tolerance: "penstock verify can prove these numbers up to the rounding of floats",
  unverifiable: "This view holds something that a second run cannot reproduce",
};

export class ViewCard {
  private readonly replica: Replica;
  private readonly table: TablePanel;
  private readonly chart: ChartPanel;
  private readonly badge = new StateBadge();
  private readonly count = element("span", { class: "count" });
  private readonly trouble = element("div", { class: "problem", hidden: true });
  private readonly end: () => void;
  private readonly paint = () => this.show();
  private total: number | null;
  readonly root: HTMLElement;

  constructor(private readonly view: View, feed: Feed, private readonly painter: Painter, private readonly freshness: Freshness) {
    this.total = view.rows ?? null;
    this.replica = new Replica(view.key);
    this.table = new TablePanel(view, orderOf(view));
    this.chart = new ChartPanel(view, feed, (job) => painter.request(job));
    this.root = this.build();
    this.end = feed.subscribe(tableSubscription(view), {
      snapshot: (rows) => this.changed(() => this.replica.snapshot(rows)),
      changes: (upserts, deletes, accepted) => {
        this.changed(() => this.replica.changes(upserts, deletes));
        if (accepted !== null) this.measure(Date.parse(accepted));
      },
      stall: () => mark(this.root, "data-stalled", ""),
      error: (problem) => this.fail(problem),
    });
  }

  /** Takes the counts and the health that /status reports. */
  status(view: View): void {
    this.total = view.rows ?? this.total;
    if (view.flow) this.badge.show(view.flow.state);
    this.painter.request(this.paint);
  }

  close(): void {
    this.end();
    this.chart.close();
    this.root.remove();
  }

  private changed(apply: () => void): void {
    apply();
    mark(this.root, "data-stalled", null);
    mark(this.trouble, "hidden", "");
    this.painter.request(this.paint);
  }

  /** A hidden tab paints nothing, so what arrives then has no time at which it was shown. */
  private measure(acceptedMs: number): void {
    if (!document.hidden) this.painter.onceShown((atMs) => this.freshness.shown(acceptedMs, atMs));
  }

  private fail(problem: Problem): void {
    this.trouble.replaceChildren(problemText(problem));
    mark(this.trouble, "hidden", null);
  }

  private show(): void {
    const { view } = this;
    const rows = [...this.replica.rows.values()].sort(ordering(orderOf(view), view.key, view.columns));
    const shown = rows.slice(0, Math.min(view.limit ?? TABLE_ROWS, TABLE_ROWS));
    this.table.show(shown, this.replica.takeFresh());
    this.chart.show(rows);
    const total = Math.max(this.total ?? 0, shown.length);
    const rowsWord = total === 1 ? "row" : "rows";
    write(this.count, total > shown.length ? `${format.number(shown.length)} of ${format.number(total)} rows` : `${format.number(total)} ${rowsWord}`);
  }

  private build(): HTMLElement {
    const { view } = this;
    this.badge.show(view.flow?.state ?? "starting");
    const proof = view.class ? element("span", { class: "proof", "data-class": view.class, title: CLASSES[view.class] ?? null }, view.class) : null;
    const facts = element("p", { class: "facts" }, this.badge.root, proof, this.count, view.keep ? element("span", {}, `keeps ${view.keep}`) : null);
    const title = element("h3", { id: `title-${view.view}` }, view.view);
    return element(
      "article",
      { class: "card view", id: `view-${view.view}`, tabindex: -1, "aria-labelledby": title.id },
      element("header", {}, element("div", {}, title, view.doc ? element("p", { class: "doc" }, view.doc) : null), facts),
      this.trouble,
      element("div", { class: this.chart.root ? "view-body" : "view-body alone" }, this.chart.root, this.table.root),
    );
  }
}
