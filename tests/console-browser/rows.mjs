// Moves through the rows of a list with the keyboard. The plan is { url, key, list }, where `list` is the path of a page with
// at least two rows.

import { check, end, follow, launch, logIn, open, plan } from "./common.mjs";

const browser = await launch();
const page = await open(await browser.newContext({ locale: "en-US" }));
await logIn(page);
await page.goto(`${plan.url}${plan.list}`);

const links = await page.$$eval("main tbody th a", (links) => links.map((link) => link.href));
const focused = () => page.evaluate(() => document.activeElement.href ?? null);
const press = async (key, expected, what) => {
  await page.keyboard.press(key);
  check(await focused() === expected, `${what}: ${await focused()} has the focus, not ${expected}`);
};
check(links.length > 1, `the list has ${links.length} rows`);
await press("k", null, "k before the first row");
await press("j", links[0], "j on the page");
await press("j", links[1], "j on the first row");
await press("k", links[0], "k on the second row");
await press("k", links[0], "k on the first row");
for (const link of links.slice(1)) await press("j", link, "j");
await press("j", links.at(-1), "j on the last row");

// A letter that is typed into a field stays there.
await page.keyboard.press("/");
await page.keyboard.type("jk");
check(await page.inputValue("[data-find]") === "jk", "the letters are typed into the field");

await page.evaluate(() => localStorage.setItem("monstrum-shortcuts-off", "1"));
await page.reload();
await press("j", null, "j with shortcuts switched off");
await page.evaluate(() => localStorage.clear());
await page.reload();
await press("j", links[0], "j with shortcuts switched on");
await follow(page, () => page.keyboard.press("Enter"));
check(page.url() === links[0], `Enter leads to ${page.url()}`);
await end(browser, {});
