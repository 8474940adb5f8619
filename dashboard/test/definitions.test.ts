// A reopened page has its cards at once, and nothing that is no definition can break it.
import { expect, test } from "vitest";
import type { Client } from "../src/server/client";
import { readDefinitions, rememberedDefinitions } from "../src/server/definitions";

const VIEWS = [{ view: "v", key: ["a"], columns: [], order_by: null, limit: null }];
const GRAPH = { app: "x", nodes: [], edges: [] };
const client = { read: (path: string) => Promise.resolve(path === "views" ? { views: VIEWS } : GRAPH) } as unknown as Client;

function place(text: string | null = null) {
  return { text, getItem: () => text, setItem: (_: string, value: string) => void (text = value) };
}

test("what was read is there for the next page", async () => {
  const kept = place();
  expect(rememberedDefinitions(kept)).toBe(null);
  const read = await readDefinitions(client, kept);
  expect(rememberedDefinitions(kept)).toEqual(read);
});

test.each(["{", "5", "null", "[]", '{"views":5}', '{"views":[{}],"graph":{"nodes":[],"edges":[]}}', '{"views":[],"graph":{}}'])("%s is not taken for definitions", (text) => {
  expect(rememberedDefinitions(place(text))).toBe(null);
});

test("a browser without room or storage keeps nothing", async () => {
  const full = { getItem: () => null, setItem: () => { throw new Error("full"); } };
  expect((await readDefinitions(client, full)).views).toEqual(VIEWS);
  expect(rememberedDefinitions(null)).toBe(null);
});
