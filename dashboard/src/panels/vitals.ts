// The five numbers that say at a glance whether the app is alive, fresh and clean.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import type { Percentiles } from "../logic/freshness";
import type { Status } from "../wire/contract";
import { Sparkline } from "./sparkline";

export class VitalsPanel {
  private readonly spark = new Sparkline();
  private readonly rate = figure("rate");
  private readonly p50 = figure("p50");
  private readonly p99 = figure("p99");
  private readonly accepted = figure("accepted");
  private readonly rejected = figure("rejected");
  private readonly late = figure("late");
  readonly root = element(
    "dl",
    { class: "vitals" },
    tile("Events per second", this.rate, this.spark.root),
    tile("Accepted", this.accepted),
    tile("Rejected", this.rejected),
    tile("Late", this.late),
    tile("Freshness p50", this.p50, null, "From the moment an event was accepted to the moment its effect was on this screen: the median"),
    tile("Freshness p99", this.p99, null, "From the moment an event was accepted to the moment its effect was on this screen: 99 of 100 were faster"),
  );

  status(status: Status): void {
    const streams = status.streams.filter((stream) => stream.kind !== "ledger");
    const doors = streams.filter((stream) => stream.kind === "stream");
    const sum = (from: typeof streams, read: (s: (typeof streams)[number]) => number) => from.reduce((n, s) => n + read(s), 0);
    const rate = sum(doors, (stream) => stream.rates.accepted);
    const rejected = sum(streams, (stream) => stream.totals.dead ?? 0);
    const late = sum(streams, (stream) => stream.totals.late ?? 0);
    write(this.rate, format.rate(rate));
    write(this.accepted, format.compact(sum(doors, (stream) => stream.totals.accepted ?? 0)));
    write(this.rejected, format.compact(rejected));
    write(this.late, format.compact(late));
    mark(this.rejected, "data-some", rejected > 0 ? "" : null);
    mark(this.late, "data-some", late > 0 ? "" : null);
    this.spark.add(rate);
  }

  freshness(percentiles: Percentiles): void {
    write(this.p50, format.milliseconds(percentiles.p50));
    write(this.p99, format.milliseconds(percentiles.p99));
  }
}

function figure(name: string): HTMLElement {
  return element("span", { class: "figure", "data-vital": name }, format.NOTHING);
}

function tile(label: string, value: HTMLElement, extra: Element | null = null, title: string | null = null): HTMLElement {
  return element("div", { class: extra ? "tile lead" : "tile", title }, element("dt", {}, label), element("dd", {}, value, extra));
}
