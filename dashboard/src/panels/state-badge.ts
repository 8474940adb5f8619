// Prints the state of a flow or a process the same way everywhere: a dot whose colour repeats what the word says.
import { element, mark, write } from "../element";

export class StateBadge {
  private readonly text = element("span");
  readonly root = element("span", { class: "state" }, element("span", { class: "dot", "aria-hidden": "true" }), this.text);

  show(state: string): void {
    mark(this.root, "data-state", state);
    write(this.text, state);
  }
}
