// Opens pages of the console in Chromium and reports what is wrong with them, as one JSON object on the last line of the
// output. The plan is a JSON object on standard input:
//   { url, key, pages: [{ name, path }], looks: [{ language, theme, width }], pictures }
// Each page is opened in each look. It must have no accessibility violation, no message in the browser's console, no
// violation of its Content-Security-Policy, no sideways scrolling and no cut text.

import { readFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const plan = JSON.parse(readFileSync(0, "utf8"));
const problems = [];
let opened = 0;

if (plan.pictures) mkdirSync(plan.pictures, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

for (const { language, theme, width } of plan.looks) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, locale: language });
  const page = await context.newPage();
  let where = "login";
  const tell = (what, detail) => problems.push({ where: `${where} ${language} ${theme} ${width}`, what, detail });
  page.on("console", (message) => tell("console", message.text()));
  page.on("pageerror", (error) => tell("error", String(error)));
  await context.addCookies([
    { name: "monstrum-theme", value: theme, url: plan.url },
    { name: "monstrum-language", value: language, url: plan.url },
  ]);
  await page.goto(`${plan.url}/console/login`);
  await look(page, tell, `login-${language}-${theme}-${width}`);
  await page.fill("input[name=key]", plan.key);
  await Promise.all([page.waitForURL(/\/console\/w\//), page.press("input[name=key]", "Enter")]);
  for (const { name, path } of plan.pages) {
    where = name;
    const answer = await page.goto(plan.url + path);
    if (answer.status() !== 200) tell("status", answer.status());
    await look(page, tell, `${name}-${language}-${theme}-${width}`);
  }
  await context.close();
}
await browser.close();
console.log(JSON.stringify({ opened, problems }));

async function look(page, tell, picture) {
  opened += 1;
  // The policy of the page refuses script elements, so the tool is evaluated.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((tags) => window.axe.run({ runOnly: { type: "tag", values: tags } }), TAGS);
  for (const { id, nodes } of violations) {
    tell("accessibility", `${id}: ${nodes.map((node) => `${node.html.slice(0, 160)} ${node.failureSummary}`).join(" | ").slice(0, 900)}`);
  }
  const layout = await page.evaluate(() => {
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const cut = [...document.querySelectorAll("h1, h2, h3, p, a, button, label, dt, dd, td, th, summary")].filter((element) => {
      const style = getComputedStyle(element);
      return style.overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1
        && !element.closest(".unseen, .skip, .cut, thead, .scroll");
    });
    return { wide, cut: cut.map((element) => element.outerHTML.slice(0, 120)) };
  });
  if (layout.wide > 0) tell("sideways", `${layout.wide} px`);
  for (const element of layout.cut) tell("cut", element);
  if (plan.pictures) await page.screenshot({ path: `${plan.pictures}/${picture}.png`, fullPage: true });
}
