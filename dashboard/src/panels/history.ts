// Follows the past of a view's leading names, which the table's top n does not hold, for its line chart.
import type { LineChart } from "../logic/chart-choice";
import { canonical } from "../logic/key";
import { Replica } from "../logic/replica";
import { leadersOf, linesOf, type Lines } from "../logic/series";
import { historySubscription, LINES } from "../logic/subscriptions";
import type { Row, View } from "../wire/contract";
import type { Feed } from "../wire/feed";

const SETTLE_MS = 8_000; // leaders are chosen again no more often: lines that come and go cannot be read

export class History {
  private leaders: Row[] = [];
  private replica: Replica;
  private end: (() => void) | null = null;
  private chosenAt = -Infinity;
  private refused = false;

  constructor(
    private readonly view: View,
    private readonly chart: LineChart,
    private readonly feed: Feed,
    private readonly onChange: () => void,
  ) {
    this.replica = new Replica(view.key);
  }

  /** Looks at the table's rows: names that now lead get their past fetched. */
  follow(rows: Row[], nowMs: number): void {
    if (this.refused) return this.makeDo(rows);
    if (rows.length === 0 || nowMs - this.chosenAt < SETTLE_MS) return;
    const known = [...rows, ...this.replica.rows.values()];
    const leaders = this.chart.names.length === 0 ? [] : leadersOf(known, this.chart, LINES);
    const same = this.end !== null && names(leaders, this.chart) === names(this.leaders, this.chart);
    this.chosenAt = nowMs;
    if (!same) this.ask(leaders);
  }

  lines(): Lines {
    return linesOf(this.replica.rows.values(), this.chart, this.leaders);
  }

  close(): void {
    this.end?.();
    this.end = null;
    this.chosenAt = -Infinity;
  }

  /** The old lines stay until the new ones are here. */
  private ask(leaders: Row[]): void {
    this.end?.();
    const replica = new Replica(this.view.key);
    this.end = this.feed.subscribe(historySubscription(this.view, this.chart, leaders), {
      snapshot: (rows) => {
        replica.snapshot(rows);
        this.replica = replica;
        this.leaders = leaders;
        this.onChange();
      },
      changes: (upserts, deletes) => {
        replica.changes(upserts, deletes);
        this.onChange();
      },
      error: () => (this.refused = true),
    });
  }

  /** Where the server refuses the history, the table's own rows are drawn. */
  private makeDo(rows: Row[]): void {
    this.replica.snapshot(rows);
    this.leaders = leadersOf(rows, this.chart, LINES);
    this.onChange();
  }
}

function names(rows: Row[], chart: LineChart): string {
  return rows.map((row) => chart.names.map((name) => canonical(row[name] ?? null)).join()).sort().join(";");
}
