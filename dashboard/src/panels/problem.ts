// Shows one error of the server as the paragraph it was written to be: what failed, the facts, what helps.
import { element } from "../element";
import type { Problem } from "../server/documents";

export function problemText(problem: Problem): HTMLElement {
  return element(
    "div",
    { class: "problem-text" },
    element("p", { class: "problem-message" }, problem.message),
    problem.detail ? element("pre", { tabindex: 0 }, words(problem.detail)) : null,
    problem.hint ? element("p", { class: "problem-hint" }, problem.hint) : null,
    element("p", { class: "problem-code" }, problem.code),
  );
}

function words(detail: unknown): string {
  return typeof detail === "string" ? detail : JSON.stringify(detail, null, 2);
}
