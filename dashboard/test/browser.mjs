// Drives the built page in a real Chromium against the fake server: what only a browser can show. Run `npm run build` first.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "./fake-server.mjs";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];
const SHOTS = process.env.SHOTS; // a folder: screenshots are kept there

let browser;
let server;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  server = await serve();
});

after(async () => {
  await browser?.close();
  await server?.close();
});

async function visit({ width = 1280, height = 900, at = server, ...options } = {}) {
  const page = await browser.newPage({ viewport: { width, height }, ...options });
  page.setDefaultTimeout(10_000);
  page.errors = [];
  page.addresses = [];
  page.on("console", (line) => line.type() === "error" && page.errors.push(line.text()));
  page.on("pageerror", (error) => page.errors.push(error.message));
  page.on("request", (request) => page.addresses.push(new URL(request.url()).host));
  await page.goto(`http://127.0.0.1:${at.port}/`);
  await page.waitForSelector('[data-connection="connected"]');
  await page.waitForSelector('tr[data-view="trending"]');
  return page;
}

async function shot(page, name, fullPage = false) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage });
}

test("shows views, streams, pipeline, flows and freshness, loads nothing from elsewhere, and logs no error", async () => {
  const page = await visit({ colorScheme: "light" });
  await page.waitForSelector('tr[data-view="countries"][data-changed] td[data-column="yes"][data-changed]');
  await page.waitForFunction(() => /\d ms/.test(document.querySelector('[data-vital="p99"]').textContent));
  await page.waitForSelector('[data-stream="rsvps"] [data-count="dead"]');
  await page.waitForSelector('.node[data-node="trending"]');
  await page.waitForSelector('figure[data-chart="lines"] canvas');
  assert.match(await page.textContent('[data-problem="revenue"]'), /prise/);
  assert.match(await page.textContent('[data-problem="countries"]'), /The table countries is not what its source is.*No such file/s);
  assert.equal(await page.locator('tr[data-view="trending"]').count(), 10);
  assert.equal(await page.locator('table[data-view="countries"] th[aria-sort="descending"]').textContent(), "yes");
  assert.deepEqual([...new Set(page.addresses)], [`127.0.0.1:${server.port}`]);
  await shot(page, "light");
  await shot(page, "light-full", true);
  assert.deepEqual(page.errors, []);
  await page.close();
});

test("is sorted as order_by says, in every frame", async () => {
  const page = await visit();
  for (let i = 0; i < 5; i++) {
    const numbers = await page.$$eval('tr[data-view="countries"] td[data-column="yes"]', (cells) => cells.map((cell) => Number(cell.dataset.value)));
    assert.deepEqual(numbers, [...numbers].sort((a, b) => b - a));
    await page.waitForTimeout(150);
  }
  await page.close();
});

test("fits 400 px without scrolling sideways, in the dark", async () => {
  const page = await visit({ width: 400, height: 800, colorScheme: "dark" });
  await page.waitForSelector(".node");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 400);
  await shot(page, "phone");
  await shot(page, "phone-full", true);
  assert.deepEqual(page.errors, []);
  await page.close();
});

test("works by keyboard: the skip link comes first, and arrows switch the chart", async () => {
  const page = await visit({ colorScheme: "dark" });
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.focus('input[name="chart-trending"]');
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector('#view-trending figure[data-chart="bars"] .bar');
  await page.waitForTimeout(1_000); // only so that the picture shows bars at rest
  await shot(page, "dark");
  assert.deepEqual(page.errors, []);
  await page.close();
});

test("says that the server is away, comes back by itself, and resumes from its position", async () => {
  const first = await serve({ every: 100 });
  const { app, port } = first;
  const page = await visit({ at: first });
  await first.close();
  await page.waitForSelector('[data-connection="offline"]');
  assert.ok((await page.locator('tr[data-view="trending"]').count()) > 0, "rows stay while the server is away");
  await shot(page, "offline");
  app.asked.length = 0;
  const second = await serve({ app, port, every: 100 });
  await page.waitForSelector('[data-connection="connected"]', { timeout: 15_000 });
  await page.waitForSelector('tr[data-view="countries"][data-changed]');
  assert.ok(app.asked.length > 0 && app.asked.filter((m) => m.type === "subscribe").every((m) => m.since !== null));
  await page.close();
  await second.close();
});

test("text of an event never becomes markup", async () => {
  const own = await serve({ every: 0 });
  const page = await visit({ at: own });
  const evil = "<img src=x onerror=alert(1)>'\"";
  own.app.raise("countries", { country: evil }, () => ({ yes: 9_999_999, share: null, last_seen: null }));
  own.app.step(1);
  await page.waitForFunction((text) => document.querySelector('tr[data-view="countries"] td')?.textContent === text, evil);
  assert.equal(await page.locator("main img").count(), 0);
  assert.deepEqual(page.errors, []);
  await page.close();
  await own.close();
});
