// Draws the recent course of one number as a small area, without axes: shape only, the number stands beside it.
import { drawing } from "../element";

const SAMPLES = 60;
const FEWEST = 8; // until there are more samples, each takes an eighth of the width
const WIDTH = 120;
const HEIGHT = 32;

export class Sparkline {
  private readonly values: number[] = [];
  private readonly area = drawing("path", { class: "spark-area" });
  private readonly line = drawing("path", { class: "spark-line", "vector-effect": "non-scaling-stroke" });
  readonly root = drawing(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    this.area,
    this.line,
  );

  add(value: number): void {
    this.values.push(value);
    if (this.values.length > SAMPLES) this.values.shift();
    const top = Math.max(...this.values, 1e-9) * 1.15;
    const step = WIDTH / (Math.max(FEWEST, this.values.length) - 1);
    const left = WIDTH - (this.values.length - 1) * step;
    const points = this.values.map((v, i) => `${(left + i * step).toFixed(1)},${(HEIGHT - 1 - (v / top) * (HEIGHT - 2)).toFixed(1)}`);
    if (points.length < 2) return;
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M${left.toFixed(1)},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z`);
  }
}
