// Follows the past of a view's leading names, which the table's top n does not hold, for its line chart.
import type { LineChart } from "../logic/chart-choice";
import { leadersOf, linesOf, type Lines } from "../logic/series";
import { historyQuestion, LINES, mayBeKept } from "../logic/subscriptions";
import { canonical, type Client, type Live } from "../server/client";
import type { Row, View } from "../server/documents";

const SETTLE_MS = 8_000; // leaders are chosen again no more often: lines that come and go cannot be read

export class History {
  private leaders: Row[] = [];
  private asked: Row[] = [];
  private live: Live | null = null;
  private rows: Row[] = [];
  private chosenAt = -Infinity;

  constructor(
    private readonly view: View,
    private readonly chart: LineChart,
    private readonly client: Client,
    private readonly onChange: () => void,
  ) {}

  /** Looks at the table's rows: names that now lead get their past fetched. */
  follow(rows: Row[], nowMs: number): void {
    if (this.live?.error) return this.makeDo(rows);
    if (rows.length === 0 || nowMs - this.chosenAt < SETTLE_MS) return;
    const leaders = this.chart.names.length === 0 ? [] : leadersOf([...rows, ...this.rows], this.chart, LINES);
    const same = this.live !== null && names(leaders, this.chart) === names(this.asked, this.chart);
    this.chosenAt = nowMs;
    if (!same) this.ask(leaders);
  }

  lines(): Lines {
    return linesOf(this.rows, this.chart, this.leaders);
  }

  close(): void {
    this.live?.close();
    this.live = null;
    this.chosenAt = -Infinity;
  }

  /** The old lines stay until the new ones are here. */
  private ask(leaders: Row[]): void {
    this.asked = leaders;
    const question = historyQuestion(this.chart, leaders);
    if (this.live) return this.live.changeFilter(question);
    this.live = this.client.live(this.view.view, { ...question, key: this.view.key, keep: mayBeKept(this.view) });
    this.live.subscribe((batch, live) => {
      if (!batch) return;
      if (batch.snapshot) this.leaders = this.asked;
      this.rows = [...live.values()];
      this.onChange();
    });
  }

  /** Where the server refuses the history, the table's own rows are drawn. */
  private makeDo(rows: Row[]): void {
    this.rows = rows;
    this.leaders = leadersOf(rows, this.chart, LINES);
    this.onChange();
  }
}

function names(rows: Row[], chart: LineChart): string {
  return rows.map((row) => chart.names.map((name) => canonical(row[name] ?? null)).join()).sort().join(";");
}
