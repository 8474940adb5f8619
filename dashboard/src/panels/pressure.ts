// A strip that is there only while senders are held back or events are dropped, with the reason and what to do.
import { element, mark, write } from "../element";
import { tell } from "../logic/pressure";
import type { Status } from "../server/documents";

export class PressurePanel {
  private readonly headline = element("strong");
  private readonly lines = element("span", { class: "pressure-lines" });
  private readonly hint = element("span", { class: "pressure-hint" });
  readonly root = element("p", { class: "pressure", role: "status", hidden: true }, this.headline, this.lines, this.hint);

  status(status: Status): void {
    const told = tell(status.pressure);
    mark(this.root, "hidden", told === null ? "" : null);
    mark(this.root, "data-state", status.pressure?.state ?? null);
    write(this.headline, told?.headline ?? "");
    write(this.lines, told?.lines.join(". ") ?? "");
    write(this.hint, told?.hint ?? "");
  }
}
