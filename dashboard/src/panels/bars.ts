// Draws ranked bars that grow, shrink and change places smoothly; only transforms move, so it is cheap for the browser.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import type { Bar } from "../logic/series";

const PITCH_PX = 34;
export const BARS = 10;

interface Line {
  root: HTMLElement;
  fill: HTMLElement;
  label: HTMLElement;
  value: HTMLElement;
}

export class BarsPanel {
  private readonly lines = new Map<string, Line>();
  readonly root = element("ol", { class: "bars" });

  constructor(label: string) {
    this.root.setAttribute("aria-label", label);
  }

  show(bars: Bar[]): void {
    const longest = Math.max(...bars.map((bar) => Math.abs(bar.value)), 1e-9);
    const gone = new Set(this.lines.keys());
    bars.forEach((bar, i) => {
      const known = this.lines.get(bar.key);
      const line = known ?? this.add(bar.key, bars.length);
      gone.delete(bar.key);
      write(line.label, bar.label);
      write(line.value, format.compact(bar.value));
      mark(line.root, "data-negative", bar.value < 0 ? "" : null);
      mark(line.root, "aria-posinset", String(i + 1));
      if (!known) line.root.getBoundingClientRect(); // settles the start of the transition
      line.root.style.transform = `translateY(${i * PITCH_PX}px)`;
      line.root.style.opacity = "1";
      line.fill.style.transform = `translateX(${(Math.abs(bar.value) / longest) * 100 - 100}%)`;
    });
    for (const key of gone) this.remove(key);
    this.root.style.setProperty("--label", `${Math.max(...bars.map((bar) => bar.label.length), 2) + 1}ch`);
    this.root.style.height = `${bars.length * PITCH_PX}px`;
  }

  private add(key: string, last: number): Line {
    const fill = element("span", { class: "bar-fill" });
    const label = element("span", { class: "bar-label" });
    const value = element("span", { class: "bar-value" });
    const track = element("span", { class: "bar-track", "aria-hidden": "true" }, fill);
    const root = element("li", { class: "bar", "data-bar": key }, label, track, value);
    root.style.transform = `translateY(${last * PITCH_PX}px)`;
    fill.style.transform = "translateX(-100%)";
    root.style.opacity = "0";
    const line = { root, fill, label, value };
    this.lines.set(key, line);
    this.root.append(root);
    return line;
  }

  private remove(key: string): void {
    const line = this.lines.get(key);
    if (!line) return;
    this.lines.delete(key);
    line.root.style.opacity = "0";
    setTimeout(() => line.root.remove(), 300);
  }
}
