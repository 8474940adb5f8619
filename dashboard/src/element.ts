// Makes elements from names, attributes and text; text is always a text node, so nothing from a stream can become markup.

export type Attributes = Record<string, string | number | boolean | null | undefined>;
export type Child = Node | string | null;

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return dress(document.createElement(tag), attributes, children);
}

export function drawing<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets text only when it differs, so that selections and screen readers are left in peace. */
export function write(target: Element, text: string): void {
  if (target.textContent !== text) target.textContent = text;
}

/** Sets or (with null) removes an attribute, only when it differs. */
export function mark(target: Element, name: string, value: string | null): void {
  if (target.getAttribute(name) === value) return;
  if (value === null) target.removeAttribute(name);
  else target.setAttribute(name, value);
}

function dress<E extends Element>(target: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    target.setAttribute(name, value === true ? "" : String(value));
  }
  target.append(...children.filter((child) => child !== null));
  return target;
}
