// The page's key comes from the fragment once, stays with the tab, and is shown where it must be.
import { expect, test } from "vitest";
import { key, offered, shown, type Place } from "../src/wire/credential";

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
  expect(shown(tab)).toEqual({ authorization: "Bearer psk_1_2" });
  expect(offered(tab)).toEqual(["penstock", "bearer.psk_1_2"]);
});

test("without a key nothing is shown", () => {
  const tab = place("#elsewhere");
  expect([key(tab), shown(tab), offered(tab)]).toEqual([null, {}, []]);
  expect(tab.cleared).toBe(0);
});
