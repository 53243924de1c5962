// Authorizes a resource with a code in Chromium, up to a call on the page Try, and reports what is wrong, as one JSON object
// on the last line of the output. The plan is a JSON object on standard input: { url, key, form, person, attempt, answer }.
// `form` is the path of the page that starts the authorization, `person` the URL at which a person enters the code,
// `attempt` the path of the page Try, and `answer` a part of the answer to the call.

import { check, launch, logIn, plan, problems } from "./common.mjs";

const browser = await launch();
const context = await browser.newContext({ locale: "en-US" });
const page = await context.newPage();
page.on("console", (message) => problems.push(message.text()));
page.on("pageerror", (error) => problems.push(String(error)));
await logIn(page);

await page.goto(plan.url + plan.form);
await Promise.all([page.waitForURL(/\/device\/[^/]+$/), page.click("form[action$='/device'] button")]);
const address = page.url();
const code = await page.$eval(".usercode code", (element) => element.textContent);
check(/^\S+$/.test(code), `the code has no spaces: ${JSON.stringify(code)}`);
check(await page.$(".usercode code + button") !== null, "the code can be copied");
const links = await page.$$eval(".steps a", (found) => found.map((link) => link.href));
check(links.length === 2 && links[1].includes(code), `the links lead to the provider: ${links}`);

// The page follows the authorization by itself.
const answer = await fetch(plan.person, { method: "POST", body: JSON.stringify({ url: links[1] }) });
check(answer.ok, `the person entered the code: ${answer.status}`);
await page.waitForSelector(".notice.success");
check(page.url() === address, `the page is the same: ${page.url()}`);
check(await page.$("[data-wait]") === null, "the page waits no longer");
check(!(await page.textContent("main")).includes(code), "a used code is not shown");

await page.goto(plan.url + plan.attempt);
await page.fill("input[name='p.path']", "/me");
if (await page.$("input[name=sure]")) await page.check("input[name=sure]");
await page.click("button[name=run]");
await page.waitForSelector("#result .status.success");
const shown = await page.textContent("#result");
check(shown.includes(plan.answer), `the answer of the call: ${shown}`);

await browser.close();
console.log(JSON.stringify({ problems }));
