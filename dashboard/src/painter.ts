// Gathers all changes of the page into one animation frame, and says when that frame is on screen.

export class Painter {
  private readonly jobs = new Set<() => void>();
  private shown: ((atMs: number) => void)[] = [];
  private asked = false;

  /** Runs `job` once in the next frame, however often it is asked for. */
  request(job: () => void): void {
    this.jobs.add(job);
    this.ask();
  }

  /** Calls back after the next frame has been painted. */
  onceShown(callback: (atMs: number) => void): void {
    this.shown.push(callback);
    this.ask();
  }

  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.asked = false;
    const jobs = [...this.jobs];
    const shown = this.shown;
    this.jobs.clear();
    this.shown = [];
    for (const job of jobs) job();
    if (shown.length === 0) return;
    setTimeout(() => { // a task queued inside a frame runs after that frame's paint
      const now = Date.now();
      for (const callback of shown) callback(now);
    });
  }
}
