// Shows one view: what it says, how well it can be proved, its chart and its rows, kept current by one subscription.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import { Fresh } from "../logic/fresh";
import type { Freshness } from "../logic/freshness";
import { ordering } from "../logic/order";
import { mayBeKept, orderOf, TABLE_ROWS, tableQuestion } from "../logic/subscriptions";
import type { Painter } from "../painter";
import type { Batch, Client, Live } from "../server/client";
import type { Problem, View } from "../server/documents";
import { ChartPanel } from "./chart";
import { problemText } from "./problem";
import { StateBadge } from "./state-badge";
import { TablePanel } from "./table";

const CLASSES: Record<string, string> = {
  exact: "penstock verify can prove every number of this view",
  tolerance: "penstock verify can prove these numbers up to the rounding of floats",
  bounded: "penstock verify can prove that each estimate of this view is within its bound",
  unverifiable: "This view holds something that a second run cannot reproduce",
};

const WAYS: Record<string, string> = {
  folded: "Each event is added to what is known; it costs the same however large the view is",
  regrouped: "What a change touches is computed again, from just the rows that it needs",
  added: "A change is added to the sums of its group, however large that is",
  whole: "Any change computes all of this view again",
};

export class ViewCard {
  private readonly live: Live;
  private readonly fresh: Fresh;
  private readonly table: TablePanel;
  private readonly chart: ChartPanel;
  private readonly badge = new StateBadge();
  private readonly count = element("span", { class: "count" });
  private readonly trouble = element("div", { class: "problem", hidden: true });
  private readonly paint = () => this.show();
  private liveSince = Infinity;
  private total: number | null;
  readonly root: HTMLElement;

  constructor(private readonly view: View, client: Client, private readonly painter: Painter, private readonly freshness: Freshness) {
    this.total = view.rows ?? null;
    this.fresh = new Fresh(view.key);
    this.table = new TablePanel(view, orderOf(view));
    this.chart = new ChartPanel(view, client, (job) => painter.request(job));
    this.root = this.build();
    this.live = client.live(view.view, { ...tableQuestion(view), key: view.key, keep: mayBeKept(view) });
    this.live.subscribe((batch) => this.told(batch));
  }

  /** Takes the counts and the health that /status reports. */
  status(view: View): void {
    this.total = view.rows ?? this.total;
    if (view.flow) this.badge.show(view.flow.state);
    this.painter.request(this.paint);
  }

  close(): void {
    this.live.close();
    this.chart.close();
    this.root.remove();
  }

  private told(batch: Batch | null): void {
    const { state, error } = this.live;
    mark(this.root, "data-stalled", state === "stalled" ? "" : null);
    if (error) this.fail(error.problem);
    if (state !== "live") this.liveSince = Infinity;
    else this.liveSince = Math.min(this.liveSince, Date.now());
    if (!batch) return;
    this.fresh.take(batch);
    mark(this.trouble, "hidden", "");
    this.painter.request(this.paint);
    if (batch.accepted !== null) this.measure(Date.parse(batch.accepted));
  }

  /** What was missed while nobody was here is old for that reason, and a hidden tab paints nothing: neither says how fresh the page is. */
  private measure(acceptedMs: number): void {
    if (document.hidden || acceptedMs < this.liveSince) return;
    this.painter.onceShown((atMs) => this.freshness.shown(acceptedMs, atMs));
  }

  private fail(problem: Problem): void {
    this.trouble.replaceChildren(problemText(problem));
    mark(this.trouble, "hidden", null);
  }

  private show(): void {
    const { view } = this;
    const rows = [...this.live.values()].sort(ordering(orderOf(view), view.key, view.columns));
    const shown = rows.slice(0, Math.min(view.limit ?? TABLE_ROWS, TABLE_ROWS));
    this.table.show(shown, this.fresh.takeFresh());
    this.chart.show(rows);
    const total = Math.max(this.total ?? 0, shown.length);
    const rowsWord = total === 1 ? "row" : "rows";
    write(this.count, total > shown.length ? `${format.number(shown.length)} of ${format.number(total)} rows` : `${format.number(total)} ${rowsWord}`);
  }

  private build(): HTMLElement {
    const { view } = this;
    this.badge.show(view.flow?.state ?? "starting");
    const proof = view.class ? element("span", { class: "proof", "data-class": view.class, title: CLASSES[view.class] ?? null }, view.class) : null;
    const how = view.how ? element("span", { class: "how", title: WAYS[view.how] ?? null }, view.how) : null;
    const facts = element("p", { class: "facts" }, this.badge.root, proof, how, this.count, view.keep ? element("span", {}, `keeps ${view.keep}`) : null);
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
