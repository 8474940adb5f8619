// The page's key comes from the fragment once, and stays with the tab.
import { expect, test } from "vitest";
import { key, type Place } from "../src/server/credential";

function place(hash: string): Place & { cleared: number } {
  const held = new Map<string, string>();
  return {
    cleared: 0,
    hash: () => hash,
    clear() {
      this.cleared++;
      hash = "";
    },
    store: { getItem: (name) => held.get(name) ?? null, setItem: (name, value) => void held.set(name, value) },
  };
}

test("a key in the fragment is taken out of the address and kept", () => {
  const tab = place("#key=psk_1_2");
  expect(key(tab)).toBe("psk_1_2");
  expect(tab.cleared).toBe(1);
  expect(key(tab)).toBe("psk_1_2");
});

test("without a key there is none", () => {
  const tab = place("#elsewhere");
  expect(key(tab)).toBe(null);
  expect(tab.cleared).toBe(0);
});
