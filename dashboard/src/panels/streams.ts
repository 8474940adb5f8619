// Shows each stream with its pace and its counts: what came in, what was refused, what was late.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import type { Status, Stream } from "../wire/contract";
import { Sparkline } from "./sparkline";

type Count = "accepted" | "duplicates" | "dead" | "shed" | "late";

const COUNTS: [Count, string][] = [["accepted", "accepted"], ["duplicates", "duplicates"], ["dead", "rejected"], ["shed", "shed"], ["late", "late"]];
const KINDS: Record<string, string> = { stream: "stream", flow: "made by a flow", ledger: "ledger" };

interface Card {
  root: HTMLElement;
  rate: HTMLElement;
  counts: Map<Count, HTMLElement>;
  spark: Sparkline;
}

export class StreamsPanel {
  private readonly cards = new Map<string, Card>();
  private readonly streams = element("div", { class: "stream-group" });
  private readonly ledgers = element("div", { class: "stream-group" });
  readonly root = element("div", { class: "streams" }, this.streams, this.ledgers);

  status(status: Status): void {
    const names = new Set(status.streams.map((stream) => stream.stream));
    for (const [name, card] of this.cards) if (!names.has(name)) (card.root.remove(), this.cards.delete(name));
    for (const stream of status.streams) this.show(stream, this.cards.get(stream.stream) ?? this.add(stream));
  }

  private show(stream: Stream, card: Card): void {
    write(card.rate, format.rate(stream.rates.accepted));
    card.spark.add(stream.rates.accepted);
    for (const [count, target] of card.counts) {
      const total = stream.totals[count];
      write(target, total === null ? format.NOTHING : format.number(total));
      mark(target, "data-some", (total ?? 0) > 0 ? "" : null);
      if (count === "shed" && target.parentElement) mark(target.parentElement, "hidden", (total ?? 0) > 0 ? null : "");
    }
  }

  private add(stream: Stream): Card {
    const name = stream.stream;
    const shown = stream.kind === "ledger" ? COUNTS.slice(0, 1) : COUNTS;
    const counts = new Map(shown.map(([count]) => [count, element("dd", { "data-count": count })]));
    const rate = element("span", { class: "figure", "data-rate": name });
    const spark = new Sparkline();
    const root = element(
      "article",
      { class: "card stream", id: `stream-${name}`, tabindex: -1, "data-stream": name, "data-kind": stream.kind },
      element("header", {}, element("h3", {}, name), element("span", { class: "kind" }, KINDS[stream.kind] ?? stream.kind)),
      element("p", { class: "pace" }, rate, element("span", { class: "unit" }, " events/s"), spark.root),
      element("dl", {}, ...shown.map(([count, label]) =>
        element("div", {}, element("dt", {}, stream.kind === "ledger" ? "entries" : label), counts.get(count) ?? null))),
    );
    const card = { root, rate, counts, spark };
    this.cards.set(name, card);
    (stream.kind === "ledger" ? this.ledgers : this.streams).append(root);
    return card;
  }
}
