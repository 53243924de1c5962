// Measures pages of the console in Chromium. The plan is a JSON object on standard input:
//   { url, key, first, live, seconds }
// where `first` and `live` are paths of pages. The program writes the line `calls` when it needs calls, from then on at a
// steady rate, and the report as one JSON object on the last line:
//   { first: { requests, transferred_bytes, bytes }, idle: { task_s, wall_s }, busy: { task_s, wall_s }, problems }

import { setTimeout as sleep } from "node:timers/promises";

import { check, launch, logIn, plan, problems } from "./common.mjs";

const ROWS_MAX = 200;

const browser = await launch();
const login = await browser.newContext({ locale: "en-US" });
const door = await login.newPage();
await logIn(door);
const storageState = await login.storageState();
await login.close();

// A new context has an empty cache.
const context = await browser.newContext({ locale: "en-US", storageState });
const page = await context.newPage();
page.on("console", (message) => problems.push(message.text()));
page.on("pageerror", (error) => problems.push(String(error)));
const devtools = await context.newCDPSession(page);
await devtools.send("Network.enable");
const requests = new Set();
const cached = new Set();
const first = { requests: 0, transferred_bytes: 0, bytes: 0 };
devtools.on("Network.requestWillBeSent", ({ requestId }) => requests.add(requestId));
devtools.on("Network.requestServedFromCache", ({ requestId }) => cached.add(requestId));
devtools.on("Network.responseReceived", ({ requestId, response }) => { if (response.fromDiskCache) cached.add(requestId); });
devtools.on("Network.dataReceived", ({ dataLength }) => { first.bytes += dataLength; });
devtools.on("Network.loadingFinished", ({ encodedDataLength }) => { first.transferred_bytes += encodedDataLength; });
const answer = await page.goto(plan.url + plan.first, { waitUntil: "networkidle" });
check(answer.status() === 200, `the first page was answered with ${answer.status()}`);
check((await answer.allHeaders())["content-encoding"] === "gzip", "the first page is not compressed");
// Chromium asks for the icon twice, and takes it from its cache the second time.
first.requests = requests.difference(cached).size;
// The messages of the protocol would take part of the time that is measured below.
await devtools.send("Network.disable");

await page.goto(plan.url + plan.live);
const state = () => page.$eval("[data-live-state]", (element) => element.textContent);
await page.waitForFunction(() => document.querySelector("[data-live-state]").textContent.includes("Live"));
// The time that the thread runs, without the time that it waits for a processor.
await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
const metrics = async () => {
  const { metrics } = await devtools.send("Performance.getMetrics");
  return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
};
const measured = async () => {
  const before = await metrics();
  await sleep(plan.seconds * 1000);
  const after = await metrics();
  return { task_s: after.TaskDuration - before.TaskDuration, wall_s: after.Timestamp - before.Timestamp };
};
const idle = await measured();

console.log("calls");
const newest = () => page.$eval("tbody tr", (row) => row.dataset.id);
const known = await newest();
await page.waitForFunction((id) => document.querySelector("tbody tr").dataset.id !== id, known);
await page.waitForFunction((rows) => document.querySelectorAll("tbody tr").length >= rows, ROWS_MAX);
const before = await newest();
const busy = await measured();
check((await state()).includes("Live"), `the page says: ${await state()}`);
check(await newest() !== before, "the page shows no new calls");
check(await page.$$eval("tbody tr", (rows) => rows.length) === ROWS_MAX, `the page shows no ${ROWS_MAX} calls`);
const age = await page.$eval("tbody time", (time) => Date.now() - new Date(time.dateTime).getTime());
check(age < 3000, `the newest call of the page is ${age} ms old`);
check(await page.isHidden("[data-live] > .notice"), "the page says that calls were left out");
await browser.close();
console.log(JSON.stringify({ first, idle, busy, problems }));
