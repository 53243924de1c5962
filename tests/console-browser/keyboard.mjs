// Goes through the wizard of the demo with the keyboard alone, from the login page to the removal of the demo. The plan is
// { url, key }. The focus must always be visible, in the window and on the element that is reached.

import { check, end, follow, launch, open, plan } from "./common.mjs";

const TABS_MAX = 150;

const browser = await launch();
const page = await open(await browser.newContext({ locale: "en-US", viewport: { width: 1280, height: 720 } }));
let tabs = 0;

// Returns what has the focus, and what is wrong with the way in which it is shown.
const focused = (selector) => page.evaluate((selector) => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const isInside = box.width > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
  const middle = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return {
    isOutside: element === document.body,
    matches: element.matches(selector),
    html: element.outerHTML.slice(0, 120),
    isOutlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    // An element that is larger than the window cannot be inside.
    isShown: (isInside || box.height > innerHeight) && (element.contains(middle) || middle?.contains(element) || box.height > innerHeight),
  };
}, selector);

// Presses Tab until an element has the focus.
const reach = async (selector) => {
  for (let pressed = 0; pressed < TABS_MAX; pressed += 1) {
    await page.keyboard.press("Tab");
    tabs += 1;
    const focus = await focused(selector);
    // After the last element, the focus is in the window of the browser itself.
    if (focus.isOutside) continue;
    check(focus.isOutlined, `${page.url()}: the focus is not visible on ${focus.html}`);
    check(focus.isShown, `${page.url()}: the focus is hidden on ${focus.html}`);
    if (focus.matches) return;
  }
  throw new Error(`${page.url()}: ${selector} is not reached with Tab`);
};

// Skips the bars of a page.
const skip = async () => {
  await reach("a.skip");
  await page.keyboard.press("Enter");
  check((await focused("#content")).matches, `${page.url()}: the link that skips the bars does not lead to the content`);
};

// Reaches an element of the content and presses a key that leads to another page.
const press = async (selector, key) => {
  await skip();
  await reach(selector);
  await follow(page, () => page.keyboard.press(key));
};

const shown = (selector) => page.locator(selector).count();

await page.goto(`${plan.url}/console/login`);
check((await focused("input[name=key]")).matches, "the field of the key has the focus");
await page.keyboard.type(plan.key);
await follow(page, () => page.keyboard.press("Enter"));
check(page.url().endsWith("/overview"), `the first page is the overview: ${page.url()}`);

for (const [step, key] of [["plugin", "Enter"], ["bot", "Space"], ["credential", "Enter"], ["access", "Space"]]) {
  await press(`button[name=step][value=${step}]`, key);
}
check(await shown("main ol .status.success") === 4, "four steps are done");
await press("button[name=which][value=inside]", "Enter");
check((await page.textContent("main .notice[role=status]")).includes("Welcome to the notebook"), "the first call is allowed");
await press("button[name=which][value=outside]", "Space");
check(await shown("main .why.denied") === 1, "the second call is denied, with its reason");

// The change is made, and the call is allowed.
await press("main .why a.button.primary", "Enter");
await press('main form[action$="/change"] button.primary', "Enter");
check(await shown("main .why.success") === 1, "the change allows the call");
await reach('.side a[href$="/overview"]');
await follow(page, () => page.keyboard.press("Enter"));
await press('main a[href$="/demo"]', "Enter");
await press("button[name=which][value=outside]", "Enter");
check((await page.textContent("main .notice[role=status]")).includes("The minutes of the board"), "the second call is allowed");

// A menu opens with the keyboard, and Escape closes it.
await reach("details.menu.end:last-of-type > summary");
await page.keyboard.press("Enter");
check(await shown("details.menu.end:last-of-type[open]") === 1, "the menu is open");
await page.keyboard.press("Escape");
check(await shown("details.menu.end:last-of-type[open]") === 0, "Escape closes the menu");

await press('main form[action$="/demo/remove"] button', "Enter");
check(page.url().endsWith("/overview") && await shown("main ol > li") === 5, "the wizard is at its start again");
await end(browser, { tabs });
