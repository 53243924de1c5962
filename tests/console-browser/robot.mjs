// Goes from the login page of an empty server to an allowed and a denied call, as fast as it can, with a mouse. The plan is
// { url, key }. The report has the number of clicks and the seconds.

import { check, end, follow, launch, open, plan } from "./common.mjs";

const browser = await launch();
const page = await open(await browser.newContext({ locale: "en-US" }));
let clicks = 0;
const click = async (selector) => {
  clicks += 1;
  await follow(page, () => page.click(selector));
};

const begin = performance.now();
await page.goto(`${plan.url}/console/login`);
await page.fill("input[name=key]", plan.key);
await click('form[action="/console/login"] button.primary');
// The next button is always the primary one.
for (let step = 0; step < 4; step += 1) await click("main ol button.primary");
await click("main ol button.primary");
check((await page.textContent("main .notice[role=status]")).includes("The call was allowed"), "the first call is allowed");
await click("main ol button.primary");
check((await page.textContent("main .notice[role=status]")).includes("The call was denied"), "the second call is denied");
check(await page.locator("main .why.denied").count() === 1, "the page tells why");
const seconds = (performance.now() - begin) / 1000;
await end(browser, { clicks, seconds });
