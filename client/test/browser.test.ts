// The producer in a real Chromium: IndexedDB, Web Locks, tabs that are closed, pages that go away.
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { bundle } from "../scripts/bundle.mjs";
import type { BrowserOptions, Producer } from "../src/producer/browser.js";
import { Door, refusal } from "./door.js";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"];
const PAGE = '<script type="module">import { openProducer } from "/producer.js"; window.openProducer = openProducer;</script>';

declare global {
  interface Window {
    openProducer(url: string, stream: string, options: BrowserOptions): Promise<Producer>;
    orders: Producer;
  }
}

let code: string;
let browser: Browser;
let context: BrowserContext;
let door: Door;

beforeAll(async () => {
  code = await bundle();
  browser = await chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: FLAGS });
}, 60_000);

afterAll(() => browser.close());

beforeEach(async () => {
  door = await Door.open();
  door.pages.set("/", PAGE).set("/producer.js", code).set("/empty", "gone");
  context = await browser.newContext();
});

afterEach(async () => {
  await context.close();
  await door.close();
});

async function tab(options: BrowserOptions = {}): Promise<Page> {
  const page = await context.newPage();
  await page.goto(`${door.url}/`);
  await page.waitForFunction("window.openProducer");
  await page.evaluate(async (given) => {
    const fast = { lingerMs: 1, backoffMostMs: 20, onTrouble: () => {} };
    window.orders = await window.openProducer(location.origin, "orders", { ...fast, ...given });
  }, options);
  return page;
}

async function send(page: Page, ...numbers: number[]): Promise<void> {
  await page.evaluate(async (sent) => {
    for (const n of sent) await window.orders.send({ n });
  }, numbers);
}

async function seen(count: number): Promise<unknown[]> {
  await expect.poll(() => door.events.length, { timeout: 5000 }).toBeGreaterThanOrEqual(count);
  await new Promise((resolve) => setTimeout(resolve, 100)); // a second one of any would come now
  return door.events.map(({ n }) => n).sort();
}

function down(): void {
  door.answers.push(...Array.from({ length: 1000 }, () => refusal(503, "overloaded")));
}

test("what a closed tab left is sent by the next, and a batch whose answer was lost is not sent twice", async () => {
  door.answers.push("taken, then cut");
  down();
  const page = await tab({ batchEvents: 1, farewell: false });
  await send(page, 0, 1, 2);
  await expect.poll(() => door.requests.length).toBeGreaterThan(2);
  await page.close();
  door.answers.length = 0;
  await send(await tab(), 3);
  expect(await seen(4)).toEqual([0, 1, 2, 3]);
});

test("two tabs never share a sequence, and a third sends what both left", async () => {
  down();
  const pages = [await tab({ farewell: false }), await tab({ farewell: false })];
  await Promise.all(pages.map((page, index) => send(page, index * 2, index * 2 + 1)));
  await expect.poll(() => new Set(door.requests.map(({ producer }) => producer)).size).toBe(2);
  await Promise.all(pages.map((page) => page.close()));
  door.answers.length = 0;
  await tab();
  expect(await seen(4)).toEqual([0, 1, 2, 3]);
});

test("tabs at once", async () => {
  const pages = await Promise.all([tab(), tab(), tab()]);
  await Promise.all(pages.map((page, index) => send(page, ...Array.from({ length: 20 }, (_, n) => 100 * (index + 1) + n))));
  await Promise.all(pages.map((page) => page.evaluate(() => window.orders.flush(5000))));
  expect(new Set(await seen(60)).size).toBe(60);
  expect(door.events).toHaveLength(60);
});

test("a page without a store sends its last events while it goes away", async () => {
  const page = await tab({ keep: "memory", lingerMs: 60_000 });
  await send(page, 7, 8);
  await page.goto(`${door.url}/empty`);
  expect(await seen(2)).toEqual([7, 8]);
});
