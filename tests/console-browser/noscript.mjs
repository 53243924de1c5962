// Works with the console in a browser that runs no scripts: logs in, creates, binds, calls, approves, and reads every page. The
// plan is { url, key, pages }, where `pages` are paths below the workspace.

import { check, end, follow, launch, open, plan } from "./common.mjs";

const browser = await launch();
const page = await open(await browser.newContext({ locale: "en-US", javaScriptEnabled: false }));
const click = (selector) => follow(page, () => page.click(selector));
const save = 'main form[method="post"] button.primary';

await page.goto(`${plan.url}/console/login`);
await page.fill("input[name=key]", plan.key);
await click('form[action="/console/login"] button.primary');
const base = page.url().replace(/\/overview$/, "");
check(/\/console\/w\/[^/]+$/.test(base), `the first page is the overview: ${page.url()}`);

await page.goto(`${base}/resources/new?type=test-echo`);
await page.fill("#name", "echo");
await page.fill('[name="p.api_base"]', "https://echo.example");
await click(save);
const resource = page.url().split("/").at(-1);
check((await page.textContent("main")).includes("echo.example"), "the resource is shown");

await page.goto(`${base}/bots/new`);
await page.fill("#name", "worker");
await click(save);
const bot = page.url();
check((await page.textContent("h1")).includes("worker"), "the bot is shown");

await page.goto(`${bot}/bind?resource=${resource}`);
await page.check('input[name="operations.mode"][value="all"]');
await page.check('input[name="tools.mode"][value="only"]');
await page.check('input[name="tools.known"][value="test_echo_run"]');
await page.click(".gates > details > summary");
await page.check('input[name="gate.0.action"][value="ask"]');
await page.check('input[name="gate.0.allow_starter"]');
await click("button[name=preview]");
check(await page.locator("main li.added").count() === 1, "the preview shows one tool more");
await click("button[name=save]");
check((await page.textContent("main")).includes("test_echo_run"), "the bot has the tool");

const run = async () => {
  await page.goto(`${bot}/tools/test_echo_run`);
  await page.fill('[name="p.repo"]', "acme/site");
  if (await page.locator("input[name=sure]").count() > 0) await page.check("input[name=sure]");
  await click("button[name=run]");
  return page.textContent("#result h2");
};
check((await run()).includes("waits for approval"), "the call waits for a person");
await page.goto(`${base}/approvals`);
await click('main a[href*="/approvals/"]:has-text("test_echo_run")');
await page.fill("#note", "fine");
await click("button[name=approve]");
check((await run()).includes("success"), "the approved call runs");

for (const path of plan.pages) {
  const answer = await page.goto(`${base}/${path}`);
  check(answer.status() === 200, `${path}: ${answer.status()}`);
  check((await page.textContent("h1")).trim() !== "", `${path} has a heading`);
  const text = (await page.textContent("main")).trim();
  check(text.length > 40, `${path} has content: ${text}`);
  // The parts that only a script makes are not there as dead controls.
  check(await page.locator("main button[type=button]:visible").count() === 0, `${path} has a button that needs a script`);
}
await page.goto(`${base}/activity/live`);
check(await page.locator("tbody tr").count() >= 2, "the live page shows the calls");
await page.click("details.menu.end:last-of-type > summary");
await click('form[action="/console/logout"] button');
check(page.url().endsWith("/console/login"), "the session has ended");
await end(browser, { pages: plan.pages.length });
