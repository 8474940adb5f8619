// Lists the flows with their state, pace and lag, and shows in full what stopped the ones that do not run.
import { element, mark, write } from "../element";
import * as format from "../logic/format";
import type { Flow, Problem, Status } from "../server/documents";
import { problemText } from "./problem";
import { StateBadge } from "./state-badge";

interface Line {
  root: HTMLElement;
  badge: StateBadge;
  cells: Record<"rate" | "lag" | "batch" | "complete", HTMLElement>;
}

export class FlowsPanel {
  private readonly lines = new Map<string, Line>();
  private readonly body = element("tbody");
  private shownProblems = "[]";
  /** Stands at the top of the page: a stopped flow must not hide below the fold. */
  readonly problems = element("div", { class: "problems", role: "alert" });
  readonly root = element(
    "div",
    { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Flows" },
    element(
      "table",
      { class: "flows" },
      element("thead", {}, element("tr", {}, ...["Flow", "State"].map((t) => element("th", { scope: "col" }, t)),
        ...["Events per second", "Waiting events", "Last batch", "Complete to"].map((t) => element("th", { scope: "col", class: "number" }, t)))),
      this.body,
    ),
  );

  status(status: Status): void {
    const names = new Set(status.flows.map((flow) => flow.flow));
    for (const [name, line] of this.lines) if (!names.has(name)) (line.root.remove(), this.lines.delete(name));
    for (const flow of status.flows) this.showFlow(flow);
    this.showProblems([...status.flows.filter((flow) => flow.error).map(stopped), ...unfilled(status)]);
  }

  private showFlow(flow: Flow): void {
    const line = this.lines.get(flow.flow) ?? this.addFlow(flow.flow);
    line.badge.show(flow.state);
    write(line.cells.rate, flow.rate == null ? format.NOTHING : format.rate(flow.rate));
    write(line.cells.lag, flow.lag_events == null ? format.NOTHING : format.compact(flow.lag_events));
    write(line.cells.batch, format.milliseconds(flow.batch_ms ?? null));
    write(line.cells.complete, flow.complete ? flow.complete.slice(0, 19).replace("T", " ") : format.NOTHING);
    mark(line.cells.complete, "title", held(flow));
  }

  private addFlow(name: string): Line {
    const badge = new StateBadge();
    const cell = () => element("td", { class: "number" });
    const cells = { rate: cell(), lag: cell(), batch: cell(), complete: cell() };
    const root = element("tr", { "data-flow": name }, element("th", { scope: "row" }, name), element("td", {}, badge.root),
      cells.rate, cells.lag, cells.batch, cells.complete);
    const line = { root, badge, cells };
    this.lines.set(name, line);
    this.body.append(root);
    return line;
  }

  private showProblems(troubles: Trouble[]): void {
    const now = JSON.stringify(troubles);
    if (now === this.shownProblems) return; // an alert that is written again is read out again
    this.shownProblems = now;
    this.problems.replaceChildren(...troubles.map(({ words, name, state, error }) => {
      const title = element("h2", {}, words[0], element("b", {}, name), words[1]);
      const root = element("section", { class: "problem", "data-problem": name }, title, error ? problemText(error) : null);
      mark(root, "data-state", state);
      return root;
    }));
  }
}

/** What a person should see at once: `words` stand before and behind the name. */
interface Trouble {
  words: [string, string];
  name: string;
  state: string;
  error: Problem | null;
}

/** How far behind the newest event a flow is complete, and what holds it. */
function held(flow: Flow): string | null {
  const parts = [flow.skew_s == null ? "" : `${format.span(flow.skew_s)} behind the newest event`, flow.held_by ? `held by ${flow.held_by}` : ""];
  return parts.filter(Boolean).join(", ") || null;
}

function stopped(flow: Flow): Trouble {
  return { words: ["The flow ", flow.state === "stopped" ? " has stopped" : ` is ${flow.state}`], name: flow.flow, state: flow.state, error: flow.error };
}

/** Tables that are not, or not wholly, what their source is. */
function unfilled(status: Status): Trouble[] {
  const tables = new Set(status.views.map((view) => view.view));
  return (status.pulls ?? []).filter((pull) => pull.error && tables.has(pull.stream)).map((pull) => ({
    words: ["The table ", " is not what its source is"],
    name: pull.stream,
    state: pull.state === "stopped" ? "stopped" : "retrying",
    error: { code: pull.state, message: pull.error ?? "", detail: pull.url },
  }));
}
