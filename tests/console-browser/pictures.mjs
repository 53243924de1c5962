// Compares pages of the console with pictures, or writes the pictures, and reports what is wrong, as one JSON object on the
// last line of the output. The plan is a JSON object on standard input:
//   { url, key, pages: [{ name, path, language, theme, width, without_session }], pictures, seen, write }
// `pictures` is the folder of the pictures. A page that differs is written to the folder `seen`. The report is
//   { fonts, known_fonts, compared, problems }
// Pages are compared only if this machine has the fonts with which the pictures were made.
//
// The caller makes the same objects for each run. What still differs between runs (times, ids, digests, durations, ports)
// is replaced on the page by fixed values of the same kind before the picture is taken.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { basename, join } from "node:path";

import { launch, logIn, plan, problems } from "./common.mjs";

const FONTS_FILE = "fonts.sha256";
const FONT_FOLDERS = ["/usr/share/fonts", "/usr/local/share/fonts", join(homedir(), ".fonts"), join(homedir(), ".local/share/fonts")];
// The part of the pixels that may differ, and the difference of a color channel that counts.
const PIXELS_MAX = 0.003;
const CHANNEL_MAX = 8;

const fonts = digestOfFonts();
const fontsFile = join(plan.pictures, FONTS_FILE);
const knownFonts = existsSync(fontsFile) ? readFileSync(fontsFile, "utf8").trim() : null;
let compared = 0;

if (plan.write) {
  rmSync(plan.pictures, { recursive: true, force: true });
  mkdirSync(plan.pictures, { recursive: true });
  writeFileSync(fontsFile, `${fonts}\n`);
}
if (plan.write || knownFonts === fonts) await open();
console.log(JSON.stringify({ fonts, known_fonts: knownFonts, compared, problems }));

// Returns a digest of the names and the contents of all font files.
function digestOfFonts() {
  const files = FONT_FOLDERS.filter(existsSync).flatMap((folder) =>
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => !entry.isDirectory() && /\.(ttf|otf|ttc|pfb|woff2?)$/i.test(entry.name))
      .map((entry) => join(entry.parentPath, entry.name)));
  const digests = files.map((file) => `${basename(file)} ${createHash("sha256").update(readFileSync(file)).digest("hex")}\n`);
  return createHash("sha256").update(digests.sort().join("")).digest("hex");
}

async function open() {
  rmSync(plan.seen, { recursive: true, force: true });
  mkdirSync(plan.seen, { recursive: true });
  const browser = await launch("--force-color-profile=srgb");
  const login = await browser.newContext();
  const door = await login.newPage();
  await logIn(door);
  const storageState = await login.storageState();
  await login.close();
  const judge = await (await browser.newContext()).newPage();
  for (const of of plan.pages) {
    const picture = await taken(browser, of, of.without_session ? undefined : storageState);
    const file = join(plan.pictures, `${of.name}.png`);
    if (plan.write) {
      writeFileSync(file, picture);
      continue;
    }
    compared += 1;
    const fault = existsSync(file) ? await difference(judge, readFileSync(file), picture) : "there is no picture";
    if (fault) {
      const seen = join(plan.seen, `${of.name}.png`);
      writeFileSync(seen, picture);
      problems.push({ page: of.name, fault, picture: file, seen });
    }
  }
  await browser.close();
}

async function taken(browser, { name, path, language, theme, width }, storageState) {
  const context = await browser.newContext({
    viewport: { width, height: 800 }, locale: language, timezoneId: "UTC", reducedMotion: "reduce", storageState,
  });
  await context.addCookies([
    { name: "monstrum-theme", value: theme, url: plan.url },
    { name: "monstrum-language", value: language, url: plan.url },
  ]);
  const page = await context.newPage();
  const answer = await page.goto(plan.url + path);
  if (answer.status() !== 200) problems.push({ page: name, fault: `status ${answer.status()}` });
  await page.evaluate(freeze);
  const picture = await page.screenshot({ fullPage: true, animations: "disabled", caret: "hide" });
  await context.close();
  return picture;
}

// Replaces what differs between runs. This function runs in the page.
function freeze() {
  const ago = document.documentElement.lang.startsWith("zh") ? "5 分钟前" : "5 min ago";
  const fixed = (text) => text
    .replace(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, "0197a3c0-5d1e-7c42-9b6f-2f4e8a10c3d5")
    .replace(/\b[0-9a-f]{32,128}\b/g, (digest) => "5f2c9e7a".repeat(16).slice(0, digest.length))
    .replace(/(127\.0\.0\.1|localhost):\d+/g, "$1:8080")
    .replace(/\b\d+(?= (ms|毫秒))/g, "12");
  for (const time of document.querySelectorAll("time")) time.textContent = ago;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    const changed = fixed(text.data);
    if (changed !== text.data) text.data = changed;
  }
  for (const field of document.querySelectorAll("input:not([type=hidden]), textarea")) {
    const changed = fixed(field.value);
    if (changed !== field.value) field.value = changed;
  }
  for (const bar of document.querySelectorAll("svg rect.bar")) {
    bar.setAttribute("x", "0");
    bar.setAttribute("width", "1000");
  }
  document.activeElement?.blur();
}

// Returns how two pictures differ, or null if they are alike.
async function difference(judge, one, other) {
  const pixels = await judge.evaluate(async ({ pictures, channelMax }) => {
    const [one, other] = await Promise.all(pictures.map(async (picture) => {
      const bytes = Uint8Array.from(atob(picture), (character) => character.charCodeAt(0));
      const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
      const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
      context.drawImage(bitmap, 0, 0);
      return context.getImageData(0, 0, bitmap.width, bitmap.height);
    }));
    if (one.width !== other.width || one.height !== other.height) {
      return { sizes: `${one.width} x ${one.height}, now ${other.width} x ${other.height}` };
    }
    let different = 0;
    for (let at = 0; at < one.data.length; at += 4) {
      const isDifferent = [0, 1, 2].some((channel) =>
        Math.abs(one.data[at + channel] - other.data[at + channel]) > channelMax);
      if (isDifferent) different += 1;
    }
    return { part: different / (one.width * one.height) };
  }, { pictures: [one, other].map((picture) => picture.toString("base64")), channelMax: CHANNEL_MAX });
  if (pixels.sizes) return `another size: ${pixels.sizes}`;
  return pixels.part > PIXELS_MAX ? `${(pixels.part * 100).toFixed(2)} % of the pixels differ` : null;
}
