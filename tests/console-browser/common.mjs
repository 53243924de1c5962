// What the programs of this folder share: the plan on standard input, the browser, and the report, which is one JSON object on
// the last line of the output.

import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

export const plan = JSON.parse(readFileSync(0, "utf8"));

export const problems = [];

// Adds a problem to the report unless a condition holds.
export const check = (is, what) => { if (!is) problems.push(what); };

// Starts the browser, with these arguments in addition.
export const launch = (...more) => chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", ...more],
});

// Opens a page. Messages in the browser's console are problems.
export const open = async (context) => {
  const page = await context.newPage();
  // A step of the demo compiles a plugin.
  page.setDefaultTimeout(120_000);
  page.on("console", (message) => problems.push(`${page.url()}: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`${page.url()}: ${error}`));
  return page;
};

// Logs in on a page with the key of the plan, and waits for the first page.
export const logIn = async (page) => {
  await page.goto(`${plan.url}/console/login`);
  await page.fill("input[name=key]", plan.key);
  await Promise.all([page.waitForURL(/\/console\/w\//), page.press("input[name=key]", "Enter")]);
};

// Does something that leads to another page, and waits until the page is loaded.
export const follow = async (page, act) => {
  await Promise.all([page.waitForNavigation(), act()]);
};

export const end = async (browser, report) => {
  await browser.close();
  console.log(JSON.stringify({ problems, ...report }));
};
