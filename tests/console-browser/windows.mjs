// Seven tabs that follow the live calls, double clicks, and pages of another site that want to use the session of a person. The
// plan is { url, key, base, call }, where `base` is the path of the workspace and `call` the path of the API that makes a call.

import { check, end, launch, logIn, open, plan } from "./common.mjs";

const TABS = 7;
const EVIL = "http://evil.example";

const browser = await launch();
const context = await browser.newContext({ locale: "en-US" });
const api = async (method, path, body) => {
  const answer = await fetch(plan.url + path, {
    method,
    headers: { authorization: `Bearer ${plan.key}`, "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });
  return answer.json();
};

// A browser has six connections to a server. A tab that is hidden closes its stream, so the next tab still has one.
const hide = (page, isHidden) => page.evaluate((isHidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);
const tabs = [];
for (let number = 0; number < TABS; number += 1) {
  const page = await open(context);
  if (number === 0) await logIn(page);
  await page.goto(`${plan.url}${plan.base}/activity/live`);
  await page.waitForFunction(() => document.querySelector("[data-live-state]").textContent.includes("Live"));
  tabs.push(page);
  if (number < TABS - 1) await hide(page, true);
}
const call = await api("POST", plan.call, { params: { any: "seen in every tab" } });
const last = tabs.at(-1);
await last.waitForSelector(`tbody tr[data-id="${call.request_id}"]`);
const status = await last.evaluate(async (path) => (await fetch(path)).status, `${plan.base}/bots`);
check(status === 200, `a page beside seven live tabs: ${status}`);
for (const page of tabs.slice(0, -1)) {
  check(await page.locator(`tbody tr[data-id="${call.request_id}"]`).count() === 0, "a hidden tab does not follow the calls");
}
await hide(last, true);
await hide(tabs[0], false);
await tabs[0].waitForSelector(`tbody tr[data-id="${call.request_id}"]`);
for (const page of tabs) await page.close();

// A double click makes one object, and ends on its page, with and without a script.
for (const javaScriptEnabled of [true, false]) {
  const other = await browser.newContext({ locale: "en-US", javaScriptEnabled });
  const page = await open(other);
  await logIn(page);
  const name = `clicked-twice-${javaScriptEnabled}`;
  await page.goto(`${plan.url}${plan.base}/bots/new`);
  await page.fill("#name", name);
  // The second click can abort the navigation of the first, so this waits for what the page shows and not for a navigation.
  await page.dblclick('main form[method="post"] button.primary');
  await page.locator("h1", { hasText: name }).waitFor();
  check(/\/bots\/[0-9a-f-]{36}$/.test(page.url()), `the page of the bot: ${page.url()}`);
  const { items } = await api("GET", "/api/bots?limit=1000");
  check(items.filter((bot) => bot.name === name).length === 1, `one bot is made: ${name}`);
  await other.close();
}

// A page of another site neither shows the console, nor changes anything, nor reads an answer. Its browser is logged in. The
// refusals are messages in the browser's console, so they are not watched.
const person = await open(context);
await person.goto(`${plan.url}${plan.base}/bots/new`);
const token = await person.inputValue('main form[method="post"] input[name=_token]');
const evil = await context.newPage();
await context.route(`${EVIL}/**`, (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html><title>evil</title>" }));
await evil.goto(`${EVIL}/`);
const framed = evil.waitForEvent("framenavigated", (frame) => frame !== evil.mainFrame());
await evil.evaluate((url) => {
  const frame = document.createElement("iframe");
  frame.src = url;
  document.body.append(frame);
}, `${plan.url}${plan.base}/bots`);
const frame = await framed;
check(frame.url().startsWith("chrome-error:"), `the console is not framed: ${frame.url()}`);
for (const path of [`${plan.base}/bots`, `${plan.base}/activity/live/events`, "/api/bots"]) {
  const heard = await evil.evaluate(async (url) => {
    const read = async (mode) => {
      try {
        return await (await fetch(url, { credentials: "include", mode })).text();
      } catch {
        return "";
      }
    };
    return await read("cors") + await read("no-cors");
  }, plan.url + path);
  check(heard === "", `another site reads ${path}: ${heard.slice(0, 200)}`);
}
const sent = evil.waitForNavigation();
await evil.evaluate(({ action, token }) => {
  const form = Object.assign(document.createElement("form"), { method: "post", action });
  for (const [name, value] of [["name", "made-by-evil"], ["_token", token]]) {
    form.append(Object.assign(document.createElement("input"), { name, value }));
  }
  document.body.append(form);
  form.submit();
}, { action: `${plan.url}${plan.base}/bots/new`, token });
const refused = await sent;
check(refused.status() === 403, `a form of another site: ${refused.status()}`);
const { items } = await api("GET", "/api/bots?limit=1000");
check(items.every((bot) => bot.name !== "made-by-evil"), "the form of another site makes nothing");
await end(browser, { tabs: TABS });
