// Draws lines over time with uPlot, in the page's own colours, and marks the window that is still being counted.
import uPlot from "uplot";
import { element } from "../element";
import * as format from "../logic/format";
import { type Lines, labelled, shownTimes } from "../logic/series";
import { Legend } from "./legend";

const HEIGHT_PX = 290;
const COLOURS = 5;

export class LinesPanel {
  private plot: uPlot | null = null;
  private data: Lines = { times: [], lines: [] };
  private drawn = "";
  private pointed: number | null = null;
  private readonly slots = new Map<string, number>();
  private readonly legend = new Legend();
  private readonly place: HTMLElement;
  private readonly sized = new ResizeObserver(() => this.resize());
  private readonly dark = matchMedia("(prefers-color-scheme: dark)");
  private readonly recolour = () => this.draw(true);
  readonly root: HTMLElement;

  /** `open`: the newest time is a window that is still being counted. */
  constructor(label: string, private readonly open: boolean) {
    this.place = element("div", { role: "img", "aria-label": label });
    this.root = element("div", { class: "lines" }, this.place, this.legend.root);
    this.sized.observe(this.place);
    this.dark.addEventListener("change", this.recolour);
  }

  show(data: Lines): void {
    this.data = data;
    this.draw(false);
  }

  close(): void {
    this.sized.disconnect();
    this.dark.removeEventListener("change", this.recolour);
    this.plot?.destroy();
  }

  private resize(): void {
    if (this.plot) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT_PX });
    else this.draw(false);
  }

  private draw(anew: boolean): void {
    const labels = this.data.lines.map((line) => line.label);
    const sign = JSON.stringify(labels);
    const series = [this.data.times, ...this.data.lines.map((line) => line.values)] as uPlot.AlignedData;
    if (this.plot && sign === this.drawn && !anew) this.plot.setData(series);
    else {
      this.plot?.destroy();
      this.plot = null;
      if (this.place.clientWidth === 0 || labels.length === 0) return;
      this.drawn = sign;
      this.legend.name(labels, this.colours(labels), this.open);
      this.plot = new uPlot(this.options(labels), series, this.place);
    }
    this.legend.show(this.data, this.pointed);
  }

  private point(index: number | null): void {
    this.pointed = index;
    this.legend.show(this.data, index);
  }

  private options(labels: string[]): uPlot.Options {
    const style = getComputedStyle(this.root);
    const ink = (name: string) => style.getPropertyValue(name).trim();
    const colours = this.colours(labels).map((slot) => ink(`--line-${slot + 1}`));
    const axis = { stroke: ink("--quiet"), font: `12px ${style.fontFamily}`, ticks: { show: false } };
    return {
      width: this.place.clientWidth,
      height: HEIGHT_PX,
      padding: [12, 26, 0, 0],
      cursor: { y: false, points: { size: 7 } },
      legend: { show: false },
      scales: {
        x: { range: (_plot, low, high) => shownTimes(this.data.times, low, high) },
        y: { range: (_plot, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 1) * 1.08)] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: (_plot, labels) => (labels?.some((label) => label.includes("\n")) ? 48 : 30),
          space: 76,
          values: (_plot, splits) => format.ticks(splits),
        },
        { ...axis, grid: { stroke: ink("--hair"), width: 1 }, size: 44, space: 44, values: (_plot, splits) => this.ticks(splits) },
      ],
      series: [
        {},
        ...labels.map((label, i) => this.line(label, colours[i] ?? "", labels.length === 1)),
      ],
      hooks: {
        drawClear: [(plot) => this.markOpen(plot, ink("--open"))],
        setCursor: [(plot) => this.point(plot.cursor.left !== undefined && plot.cursor.left >= 0 ? (plot.cursor.idx ?? null) : null)],
      },
    };
  }

  private ticks(splits: number[]): string[] {
    const shown = labelled(this.data.lines, splits);
    return splits.map((split, i) => (shown[i] ? format.compact(split) : ""));
  }

  private line(label: string, colour: string, alone: boolean): uPlot.Series {
    return {
      label,
      stroke: colour,
      width: 2,
      spanGaps: true,
      paths: uPlot.paths.spline!(),
      points: { show: this.data.times.length < 40, size: 5, fill: colour },
      ...(alone ? { fill: `color-mix(in srgb, ${colour} 14%, transparent)` } : {}),
    };
  }

  private markOpen(plot: uPlot, colour: string): void {
    const times = this.data.times;
    const [from, to] = [times.at(-2) ?? plot.scales["x"]?.min, times.at(-1)];
    if (!this.open || from === undefined || to === undefined) return;
    const left = plot.valToPos(from, "x", true);
    plot.ctx.save();
    plot.ctx.fillStyle = colour;
    plot.ctx.fillRect(left, plot.bbox.top, plot.valToPos(to, "x", true) - left, plot.bbox.height);
    plot.ctx.restore();
  }

  /** A line keeps its colour for as long as it is drawn, whatever its rank. */
  private colours(labels: string[]): number[] {
    for (const label of [...this.slots.keys()]) if (!labels.includes(label)) this.slots.delete(label);
    const taken = new Set(this.slots.values());
    const free = Array.from({ length: COLOURS }, (_, i) => i).filter((slot) => !taken.has(slot));
    for (const label of labels) if (!this.slots.has(label)) this.slots.set(label, free.shift() ?? 0);
    return labels.map((label) => this.slots.get(label) ?? 0);
  }
}
