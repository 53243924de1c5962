// Follows the live calls of the console in Chromium and reports what is wrong, as one JSON object on the last line of the
// output. The plan is a JSON object on standard input: { url, key, page, call }, where `page` is the path of the live page
// and `call` the path of the API that makes a call.

import { check, launch, logIn, plan, problems } from "./common.mjs";

const browser = await launch();
const context = await browser.newContext({ locale: "en-US" });
const page = await context.newPage();
page.on("console", (message) => problems.push(message.text()));
page.on("pageerror", (error) => problems.push(String(error)));
await logIn(page);

const call = async (any) => {
  const answer = await fetch(plan.url + plan.call, {
    method: "POST",
    headers: { authorization: `Bearer ${plan.key}`, "content-type": "application/json" },
    body: JSON.stringify({ params: { any } }),
  });
  return (await answer.json()).request_id;
};
const state = (text) => page.waitForFunction(
  (text) => document.querySelector("[data-live-state]").textContent.includes(text), text);
const row = (id) => page.waitForSelector(`tbody tr[data-id="${id}"]`);
const first = () => page.$eval("tbody tr", (row) => row.dataset.id);
const hide = (isHidden) => page.evaluate((isHidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);

await page.goto(plan.url + plan.page);
await state("Live");
const hostile = await call("<img src=x onerror=alert(1)>\u202e");
await row(hostile);
check(await first() === hostile, "a new call is on top");
const shown = await page.$eval("tbody tr", (row) => ({ text: row.textContent, images: row.querySelectorAll("img").length }));
check(shown.images === 0 && shown.text.includes("<img") && shown.text.includes("\\u{202e}"), `text: ${JSON.stringify(shown)}`);

await page.keyboard.press("p");
await state("Paused");
const held = [await call("held"), await call("held")];
await state("Paused. New calls: 2");
check(await first() === hostile, "a paused page does not change");
await page.keyboard.press("p");
await row(held[1]);
check(await first() === held[1], "the newest call is on top");

await page.hover("tbody tr");
await state("Paused");
await page.mouse.move(0, 0);
await state("Live");

// A page that was hidden continues where it was.
await hide(true);
const missed = await call("missed");
await hide(false);
await row(missed);
const ids = await page.$$eval("tbody tr", (rows) => rows.map((row) => row.dataset.id));
check(new Set(ids).size === ids.length, `a call is shown once: ${ids}`);

// The stream ends with the session.
const other = await context.newPage();
await other.goto(`${plan.url}/console`);
await other.click("details.menu.end:last-of-type > summary");
await Promise.all([other.waitForURL(/\/console\/login/), other.click('form[action="/console/logout"] button')]);
await state("session has ended");
await browser.close();
console.log(JSON.stringify({ problems }));
