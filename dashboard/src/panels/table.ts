// Keeps one HTML table equal to the rows of a view, touching only the rows and cells that differ.
import { element, mark, write } from "../element";
import { roleOf, shownOf } from "../logic/columns";
import * as format from "../logic/format";
import { canonical, keyOf } from "../server/client";
import type { Column, Row, View } from "../server/documents";

const SHOWN_MS = 1_400; // how long a changed row stays marked; the fade in CSS is as long

interface Line {
  root: HTMLTableRowElement;
  cells: Map<string, HTMLTableCellElement>;
  calm: ReturnType<typeof setTimeout> | undefined;
}

export class TablePanel {
  private readonly lines = new Map<string, Line>();
  private readonly numbers: Set<string>;
  private readonly body = element("tbody");
  private readonly empty = element("p", { class: "empty" }, "No rows yet. They appear here as soon as events arrive.");
  readonly root: HTMLElement;

  constructor(private readonly view: View, order: string[]) {
    this.numbers = new Set(view.columns.filter((column) => roleOf(column) === "number").map((column) => column.name));
    const head = element("tr", {}, ...view.columns.map((column) => heading(column, order)));
    this.root = element(
      "div",
      { class: "scroll rows", tabindex: 0, role: "region", "aria-label": `Rows of ${view.view}` },
      element("table", { "data-view": view.view }, element("thead", {}, head), this.body),
      this.empty,
    );
  }

  /** Shows `rows` in their order; those whose key is in `fresh` are marked as changed. */
  show(rows: Row[], fresh: Set<string>): void {
    const gone = new Set(this.lines.keys());
    let next = this.body.firstElementChild;
    for (const row of rows) {
      const key = keyOf(row, this.view.key);
      const line = this.lines.get(key) ?? this.add(key);
      gone.delete(key);
      this.fill(line, row, fresh.has(key));
      if (line.root === next) next = next.nextElementSibling;
      else this.body.insertBefore(line.root, next);
    }
    for (const key of gone) this.remove(key);
    mark(this.empty, "hidden", rows.length > 0 ? "" : null);
  }

  private add(key: string): Line {
    const cells = new Map(this.view.columns.map((column) =>
      [column.name, element("td", { "data-column": column.name, class: kind(column) })]));
    const root = element("tr", { "data-view": this.view.view, "data-key": key }, ...cells.values());
    const line: Line = { root, cells, calm: undefined };
    this.lines.set(key, line);
    return line;
  }

  private remove(key: string): void {
    const line = this.lines.get(key);
    clearTimeout(line?.calm);
    line?.root.remove();
    this.lines.delete(key);
  }

  private fill(line: Line, row: Row, fresh: boolean): void {
    for (const column of this.view.columns) {
      const name = column.name;
      const target = line.cells.get(name);
      if (!target) continue;
      const value = shownOf(column, row[name]);
      const exact = typeof value === "string" && this.numbers.has(name);
      const raw = canonical(value);
      if (target.dataset["value"] === raw) {
        if (fresh) mark(target, "data-changed", null);
        continue;
      }
      if (fresh) mark(target, "data-changed", "");
      target.dataset["value"] = raw;
      write(target, exact ? format.digits(value) : format.cell(value));
      mark(target, "data-null", value === null ? "" : null);
      mark(target, "title", target.textContent === value || typeof value === "number" ? null : raw.replace(/^"|"$/g, ""));
    }
    if (fresh) this.flash(line);
  }

  private flash(line: Line): void {
    clearTimeout(line.calm);
    const wasOn = line.root.dataset["changed"];
    line.root.dataset["changed"] = wasOn === "a" ? "b" : "a"; // two names of one animation: a row that changes again starts it anew
    line.calm = setTimeout(() => {
      mark(line.root, "data-changed", null);
      for (const target of line.cells.values()) mark(target, "data-changed", null);
    }, SHOWN_MS);
  }
}

function heading(column: Column, order: string[]): HTMLElement {
  const first = order[0] ?? "";
  const sort = first === column.name ? "ascending" : first === `-${column.name}` ? "descending" : null;
  return element("th", { scope: "col", class: kind(column), "aria-sort": sort, title: column.type }, column.name);
}

function kind(column: Column): string | null {
  const role = roleOf(column);
  return role === "number" ? "number" : role === "window" || role === "time" ? "time" : null;
}
