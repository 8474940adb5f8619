// Names the lines of a chart and prints their values: the newest ones, or those under the pointer.
import { element, write } from "../element";
import * as format from "../logic/format";
import type { Lines } from "../logic/series";

export class Legend {
  private values: HTMLElement[] = [];
  private readonly when = element("span", { class: "legend-when" });
  readonly root = element("p", { class: "legend" });

  /** Starts anew with these names. `slots` are numbers of the palette, from 0. */
  name(labels: string[], slots: number[], open: boolean): void {
    this.values = labels.map(() => element("b"));
    const items = labels.map((label, i) =>
      element("span", { class: "legend-item" }, element("i", { class: `swatch swatch-${(slots[i] ?? 0) + 1}` }), `${label} `, this.values[i] ?? null));
    const counting = element("span", { class: "legend-item" }, element("i", { class: "swatch swatch-open" }), "still counting");
    this.root.replaceChildren(...items, ...(open ? [counting] : []), this.when);
  }

  /** Prints the values at `index` of the time axis, or with null the newest of each line. */
  show(data: Lines, index: number | null): void {
    data.lines.forEach((line, i) => {
      const value = index === null ? line.values.findLast((v) => v !== null) : line.values[index];
      const target = this.values[i];
      if (target) write(target, value == null ? format.NOTHING : format.compact(value));
    });
    const time = index === null ? undefined : data.times[index];
    write(this.when, time === undefined ? "" : `at ${format.time(new Date(time * 1000).toISOString())}`);
  }
}
