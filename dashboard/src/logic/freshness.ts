// Measures how old the newest event is when its effect is on screen, over the last few hundred batches shown.

const SAMPLES = 500;

export interface Percentiles {
  p50: number | null;
  p99: number | null;
}

/** Ages compare the server's clock with the reader's: exact on one machine, off by their difference elsewhere. */
export class Freshness {
  private readonly ages: number[] = [];

  shown(acceptedMs: number, shownMs: number): void {
    if (Number.isNaN(acceptedMs)) return;
    this.ages.push(Math.max(0, shownMs - acceptedMs));
    if (this.ages.length > SAMPLES) this.ages.shift();
  }

  percentiles(): Percentiles {
    const sorted = [...this.ages].sort((a, b) => a - b);
    return { p50: nearestRank(sorted, 0.5), p99: nearestRank(sorted, 0.99) };
  }
}

function nearestRank(sorted: number[], share: number): number | null {
  return sorted[Math.ceil(share * sorted.length) - 1] ?? null;
}
