// Draws lines over time with uPlot, in the page's own colours, and marks the window that is still being counted.
import uPlot from "uplot";
import { element } from "../element";
import * as format from "../logic/format";
import type { Lines } from "../logic/series";

const HEIGHT_PX = 300;
const COLOURS = 5;

export class LinesPanel {
  private plot: uPlot | null = null;
  private data: Lines = { times: [], lines: [] };
  private drawn = "";
  private readonly slots = new Map<string, number>();
  readonly root: HTMLElement;

  /** `open`: the newest time is a window that is still being counted. */
  constructor(label: string, private readonly open: boolean) {
    this.root = element("div", { class: "lines", role: "img", "aria-label": label });
    new ResizeObserver(() => this.resize()).observe(this.root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
  }

  show(data: Lines): void {
    this.data = data;
    this.draw(false);
  }

  private resize(): void {
    if (this.plot) this.plot.setSize({ width: this.root.clientWidth, height: HEIGHT_PX });
    else this.draw(false);
  }

  private draw(anew: boolean): void {
    const labels = this.data.lines.map((line) => line.label);
    const sign = JSON.stringify(labels);
    const series = [this.data.times, ...this.data.lines.map((line) => line.values)] as uPlot.AlignedData;
    if (this.plot && sign === this.drawn && !anew) return this.plot.setData(series);
    this.plot?.destroy();
    this.plot = null;
    if (this.root.clientWidth === 0 || labels.length === 0) return;
    this.drawn = sign;
    this.plot = new uPlot(this.options(labels), series, this.root);
  }

  private options(labels: string[]): uPlot.Options {
    const style = getComputedStyle(this.root);
    const ink = (name: string) => style.getPropertyValue(name).trim();
    const colours = this.colours(labels).map((slot) => ink(`--line-${slot + 1}`));
    const axis = { stroke: ink("--quiet"), font: `12px ${style.fontFamily}`, ticks: { show: false } };
    return {
      width: this.root.clientWidth,
      height: HEIGHT_PX,
      padding: [12, 12, 0, 0],
      cursor: { y: false, points: { size: 7 } },
      legend: { live: true },
      scales: { y: { range: (_plot, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 1) * 1.08)] } },
      axes: [
        { ...axis, grid: { show: false }, space: 64, values: (_plot, splits) => splits.map((s) => format.time(new Date(s * 1000).toISOString())) },
        { ...axis, grid: { stroke: ink("--hair"), width: 1 }, size: 44, space: 44, values: (_plot, splits) => splits.map(format.compact) },
      ],
      series: [
        { label: "", value: (_plot, s) => (s == null ? "" : format.time(new Date(s * 1000).toISOString())) },
        ...labels.map((label, i) => this.line(label, colours[i] ?? "", labels.length === 1)),
      ],
      hooks: { drawClear: [(plot) => this.markOpen(plot, ink("--open"))] },
    };
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
      value: (_plot, value) => (value == null ? format.NOTHING : format.compact(value)),
    };
  }

  private markOpen(plot: uPlot, colour: string): void {
    const times = this.data.times;
    const [from, to] = [times.at(-2), times.at(-1)];
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
