// The reader in a real Chromium: its WebSocket, its EventSource, IndexedDB over reloads, and two tabs.
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { bundle } from "../scripts/bundle.mjs";
import type * as Reader from "../src/reader/client.js";
import { type Asked, streaming, Wire } from "./wire.js";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"];
const PAGE = '<script type="module">import * as penstock from "/client.js"; window.penstock = penstock;</script>';

declare global {
  interface Window {
    penstock: typeof Reader;
    client: Reader.Client;
    topics: Reader.Live;
  }
}

let code: string;
let browser: Browser;
let context: BrowserContext;
let wire: Wire;
let at: number;
let tell: Set<(type: string, data: Record<string, unknown>) => void>;

beforeAll(async () => {
  code = await bundle("reader/client.ts");
  browser = await chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: FLAGS });
}, 60_000);

afterAll(() => browser.close());

beforeEach(async () => {
  wire = await Wire.open();
  [at, tell] = [1, new Set()];
  wire.answer = answer;
  wire.heard = (peer, said) => said.type === "subscribe" && follow(said["since"] as string | null, (type, data) => peer.say({ type, id: said.id, ...data }));
  context = await browser.newContext();
});

afterEach(async () => {
  await context.close();
  await wire.close();
});

function answer(asked: Asked): unknown {
  const { path, query, response } = asked;
  const send = (type: string, body: string): void => void response.writeHead(200, { "Content-Type": type }).end(body);
  if (path === "/") return send("text/html", PAGE);
  if (path === "/client.js") return send("text/javascript", code);
  if (path === "/views") return { views: [{ view: "topics", key: ["topic"] }] };
  if (path === "/tickets") return { ticket: `t${wire.requests.length}` };
  if (path === "/views/topics/events") return follow(query["last_event_id"] ?? null, streaming(asked));
  return {};
}

function follow(since: string | null, say: (type: string, data: Record<string, unknown>) => void): undefined {
  const rows = [{ topic: "a", n: at }];
  if (since === null) say("snapshot", { position: `p${at}`, rows });
  else if (since !== `p${at}`) say("changes", { position: `p${at}`, upserts: rows, deletes: [] });
  tell.add(say);
}

function step(): void {
  at += 1;
  for (const say of tell) say("changes", { position: `p${at}`, upserts: [{ topic: "a", n: at }], deletes: [] });
}

async function tab(options: Reader.ClientOptions = {}): Promise<Page> {
  const page = await context.newPage();
  await load(page, options, () => page.goto(`${wire.url}/`));
  return page;
}

async function load(page: Page, options: Reader.ClientOptions, go: () => Promise<unknown>): Promise<void> {
  await go();
  await page.waitForFunction("window.penstock");
  await page.evaluate((given) => {
    window.client = window.penstock.connect(location.origin, { backoffMostMs: 50, ...given });
    window.topics = window.client.live("topics");
  }, options);
}

async function shows(page: Page, n: number, state = "live"): Promise<void> {
  await page.waitForFunction(([n, state]) => window.topics.get("a")?.["n"] === n && window.topics.state === state, [n, state] as const, { timeout: 15_000 });
}

const sinces = (): unknown[] => wire.peers.map((peer) => peer.asked()?.["since"]);

test.each(["indexeddb", "local", "session"] as const)("a reload goes on from what %s holds", async (store) => {
  const page = await tab({ store });
  await shows(page, 1);
  step();
  await shows(page, 2);
  await page.waitForTimeout(1100);
  await load(page, { store }, () => page.reload());
  await shows(page, 2);
  at += 1;
  await page.goto("about:blank");
  await load(page, { store }, () => page.goto(`${wire.url}/`));
  await shows(page, 3);
  expect(sinces()).toEqual([null, "p2", "p2"]);
});

test("two tabs write the same entry, and a third goes on from one of them", async () => {
  const pages = [await tab({ store: "indexeddb" }), await tab({ store: "indexeddb" })];
  for (let n = 2; n < 6; n++) {
    step();
    await Promise.all(pages.map((page) => shows(page, n)));
    await Promise.all(pages.map((page) => page.evaluate(() => window.client.save())));
  }
  await pages[0]!.waitForTimeout(100);
  const third = await tab({ store: "indexeddb" });
  await shows(third, 5);
  expect(sinces().at(-1)).toBe("p5");
});

test("where the socket is blocked, the browser's own EventSource carries it, with a ticket", async () => {
  wire.socketsAllowed = false;
  const page = await tab({ key: "psk_1" });
  await shows(page, 1);
  expect(await page.evaluate(() => window.client.transport)).toBe("events");
  step();
  await shows(page, 2);
  const asked = wire.requests.filter(({ path }) => path.endsWith("/events"));
  expect(asked.map(({ query, key }) => [query["ticket"]?.[0], key])).toEqual([["t", undefined]]);
  asked[0]!.response.destroy();
  at += 1;
  await shows(page, 3);
  expect(wire.requests.filter(({ path }) => path.endsWith("/events")).at(-1)?.query["last_event_id"]).toBe("p2");
});

test("a page that comes back from the browser's cache goes on by itself", async () => {
  const page = await tab();
  await shows(page, 1);
  wire.peers[0]!.alive = false;
  await page.evaluate(() => dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true })));
  at += 1;
  await shows(page, 2);
  expect(sinces()).toEqual([null, "p1"]);
});
