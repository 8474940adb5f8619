// A producer in Node against a real HTTP server: what it keeps, what it repeats, what it tells.
import { appendFile, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { isRejection, type NodeOptions, openProducer, type Producer, ProducerError } from "../src/producer/node.js";
import { Door, refusal } from "./door.js";

let door: Door;
let folder: string;
let opened: Producer[];
let troubles: ProducerError[];

beforeEach(async () => {
  door = await Door.open();
  folder = await mkdtemp(join(tmpdir(), "penstock-js-"));
  opened = [];
  troubles = [];
});

afterEach(async () => {
  await Promise.all(opened.map((producer) => producer.close(0).catch(() => {})));
  await door.close();
  await rm(folder, { recursive: true });
});

async function open(options: NodeOptions = {}): Promise<Producer> {
  const fast = { lingerMs: 1, backoffMostMs: 20, timeoutMs: 2000, onTrouble: (error: ProducerError) => troubles.push(error) };
  const producer = await openProducer(door.url, "orders", { ...fast, ...options });
  opened.push(producer);
  return producer;
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 5000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error("waited too long");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

function numbers(): [number, number][] {
  return door.requests.map(({ epoch, sequence }) => [epoch, sequence]);
}

test("events arrive once and in order, and the rejected ones are told", async () => {
  const rejected: string[] = [];
  const orders = await open({ folder, batchEvents: 7, onRejected: (event) => rejected.push(event) });
  const handles = [];
  for (let n = 0; n < 20; n++) handles.push(await orders.send({ n }));
  const bad = await orders.send({ bad: true });
  const text = await orders.send('{"n":\n20}');
  for (const handle of [...handles, text]) expect((await handle.answered).ack).toBe("token");
  const error = await bad.answered.catch((error: unknown) => error);
  expect(isRejection(error) && error.reason).toBe("wrong_type");
  expect(door.events.map(({ n }) => n)).toEqual(Array.from({ length: 21 }, (_, n) => n));
  expect(rejected).toEqual(['{"bad":true}']);
});

test("a batch keeps its number and its bytes until it is answered", async () => {
  door.answers.push("cut", refusal(500, "internal"), "taken, then cut", refusal(503, "overloaded", { "Retry-After": "0" }));
  const orders = await open({ folder });
  const first = await orders.send({ n: 0, text: "a".repeat(2000) });
  expect(await first.answered).toEqual({ ack: "token", repeated: true, shed: 0 });
  await (await orders.send({ n: 1 })).answered;
  const tries = door.requests.slice(0, 5);
  expect(new Set(tries.map(({ epoch, sequence, raw }) => `${epoch} ${sequence} ${raw}`)).size).toBe(1);
  expect(tries[0]?.packed).toBe(true);
  expect(door.events.map(({ n }) => n)).toEqual([0, 1]);
});

test("each try is stamped anew", async () => {
  let now = 5_000_000_000_000;
  door.answers.push("cut", refusal(429, "too_many", { "Retry-After": "0" }));
  const orders = await open({ now: () => (now += 3_600_000) });
  await (await orders.send({ n: 0 })).answered;
  const stamps = door.requests.map(({ sent }) => sent);
  expect(stamps).toHaveLength(3);
  expect(stamps).toEqual([...new Set(stamps)].sort());
});

test("what an ended program left is sent by the next, an open batch under its old number", async () => {
  door.answers.push("taken, then cut", ...Array.from({ length: 50 }, () => refusal(503, "overloaded", { "Retry-After": "9" })));
  const first = await open({ folder, batchEvents: 1 });
  const handle = await first.send({ n: 0 });
  await first.send({ n: 1 });
  await until(() => door.requests.length >= 2);
  await first.close(0);
  await expect(handle.answered).rejects.toMatchObject({ code: "unsent" });
  door.answers.length = 0;
  const asked = door.requests.length;
  const second = await open({ folder });
  await second.send({ n: 2 });
  await second.flush(5000);
  expect(door.events.map(({ n }) => n)).toEqual([0, 1, 2]);
  const [old, ...fresh] = numbers().slice(asked);
  expect(old).toEqual(numbers()[0]);
  expect(fresh[0]?.[0]).toBeGreaterThan(old?.[0] ?? Infinity);
  expect(fresh[0]?.[1]).toBe(0);
});

test("a page that is not the door settles nothing", async () => {
  door.answers.push({ status: 200, text: "<html>pay here</html>" }, { status: 204 }, { status: 302, headers: { Location: "/login" } });
  door.answers.push({ status: 422, body: { detail: "no" } });
  const orders = await open();
  await (await orders.send({ n: 0 })).answered;
  expect(door.requests).toHaveLength(5);
  expect(door.events).toEqual([{ n: 0 }]);
  expect(troubles.length).toBeGreaterThan(0);
});

test.each([401, 403, 404, 415])("a refusal %i that will not pass is loud and loses nothing", async (status) => {
  const keys = ["old", "new"];
  door.answers.push(refusal(status, "no"));
  const orders = await open({ key: () => keys.shift() ?? "" });
  await (await orders.send({ n: 0 })).answered;
  expect(door.requests.map(({ key }) => key)).toEqual(["Bearer old", "Bearer new"]);
  expect(troubles.map(({ message }) => message)).toEqual([`${status} no: it is no`]);
});

test("a body that is too large is halved under the same number; one event alone is rejected", async () => {
  door.answers.push(refusal(413, "too_large"), { status: 413, text: "nginx" });
  const orders = await open({ lingerMs: 30 });
  const handles = await Promise.all([0, 1, 2, 3].map((n) => orders.send({ n })));
  for (const handle of handles) await handle.answered;
  expect(door.requests.map(({ events }) => events.length)).toEqual([4, 2, 1, 1, 1, 1]);
  expect(numbers().map(([, sequence]) => sequence)).toEqual([0, 0, 0, 1, 2, 3]);
  door.answers.push(refusal(413, "too_large"));
  const large = await orders.send({ n: 4 });
  await expect(large.answered).rejects.toMatchObject({ code: "event_rejected", reason: "too_large" });
  await (await orders.send({ n: 5 })).answered;
  expect(door.events.map(({ n }) => n)).toEqual([0, 1, 2, 3, 5]);
});

test.each(["taken, then cut", "cut"] as const)("a doubtful batch that is too large is made smaller only if it was not taken: %s", async (lost) => {
  door.answers.push(lost, refusal(413, "too_large"));
  if (lost === "cut") door.answers.push(refusal(409, "sequence_gap", { "Producer-Expected-Seq": "0" }), refusal(413, "too_large"));
  const orders = await open({ lingerMs: 30 });
  const handles = await Promise.all([0, 1, 2, 3].map((n) => orders.send({ n })));
  for (const handle of handles) expect((await handle.answered).repeated).toBe(lost !== "cut");
  await (await orders.send({ n: 4 })).answered;
  expect(door.events.map(({ n }) => n)).toEqual([0, 1, 2, 3, 4]);
  expect(door.requests.map(({ events }) => events.length)).toEqual(lost === "cut" ? [4, 4, 1, 4, 2, 2, 1] : [4, 4, 1, 1]);
});

test("a server that forgot the producer gets the batch in a new epoch, and doubt is told", async () => {
  const orders = await open();
  await (await orders.send({ n: 0 })).answered;
  door.answers.push(refusal(409, "sequence_gap"));
  await (await orders.send({ n: 1 })).answered;
  expect(troubles).toEqual([]);
  door.answers.push("cut", refusal(409, "sequence_gap"));
  await (await orders.send({ n: 2 })).answered;
  expect(numbers().map(([, sequence]) => sequence)).toEqual([0, 1, 0, 1, 1, 0]);
  expect(troubles.map(({ message }) => message).join()).toContain("twice");
});

test("a newer instance fences the older one, which stops and says so", async () => {
  const orders = await open();
  await (await orders.send({ n: 0 })).answered;
  door.answers.push(refusal(403, "producer_fenced"));
  const handle = await orders.send({ n: 1 });
  await expect(handle.answered).rejects.toMatchObject({ code: "producer_fenced" });
  expect(orders.status.state).toBe("fenced");
  await expect(orders.send({ n: 2 })).rejects.toMatchObject({ code: "producer_fenced" });
});

describe("a full queue", () => {
  test("is an error by choice", async () => {
    let free = (): void => {};
    door.gate = new Promise((resolve) => (free = resolve));
    const orders = await open({ queueEvents: 2, full: "error" });
    await orders.send({ n: 0 });
    await orders.send({ n: 1 });
    await expect(orders.send({ n: 2 })).rejects.toMatchObject({ code: "queue_full" });
    free();
    await orders.flush(5000);
    expect(door.events).toHaveLength(2);
  });

  test("is a wait by default", async () => {
    let free = (): void => {};
    door.gate = new Promise((resolve) => (free = resolve));
    const orders = await open({ queueBytes: 16 });
    await orders.send({ n: 0 });
    await orders.send({ n: 1 });
    const third = orders.send({ n: 2 });
    await expect(Promise.race([third, new Promise((resolve) => setTimeout(resolve, 30, "waits"))])).resolves.toBe("waits");
    free();
    await (await third).answered;
  });
});

test("a folder is one producer's and one stream's", async () => {
  const orders = await open({ folder });
  await expect(open({ folder })).rejects.toMatchObject({ code: "folder_held" });
  await orders.close();
  await expect(openProducer(door.url, "visits", { folder })).rejects.toMatchObject({ code: "wrong_folder" });
});

test("a torn end of the journal does not count, and what stands before it does", async () => {
  door.answers.push(...Array.from({ length: 50 }, () => refusal(503, "overloaded", { "Retry-After": "9" })));
  const first = await open({ folder });
  await first.send({ n: 0 });
  await first.close(0);
  const path = join(folder, "queue.jsonl");
  await appendFile(path, '0badc0de {"events":[[2,"{}"]]}\nhalf a li');
  door.answers.length = 0;
  const second = await open({ folder });
  await (await second.send({ n: 1 })).answered;
  await second.close();
  expect(door.events.map(({ n }) => n)).toEqual([0, 1]);
});

test("the journal does not grow for ever", async () => {
  const orders = await open({ folder, lingerMs: 0 });
  const text = "x".repeat(100_000);
  for (let n = 0; n < 30; n++) await (await orders.send({ n, text })).answered;
  await orders.close();
  expect((await readFile(join(folder, "queue.jsonl"))).length).toBeLessThan(1_300_000);
});

test("what memory loses is told", async () => {
  door.gate = new Promise(() => {});
  const orders = await open();
  await orders.send({ n: 0 });
  await expect(orders.flush(20)).rejects.toMatchObject({ code: "unsent" });
  await expect(orders.close(20)).rejects.toMatchObject({ code: "unsent" });
  await expect(orders.send({ n: 1 })).rejects.toMatchObject({ code: "unsent" });
});

test.each([["[1]"], ["{"], ["5"], [[1]], [new Date()]])("%j is no event", async (event) => {
  const orders = await open();
  await expect(orders.send(event)).rejects.toBeInstanceOf(ProducerError);
});
