// Enhances the pages of the console. Without this script, every page reads and every form saves.

const words = document.documentElement.lang === "zh-CN"
  ? { copy: "复制", copied: "已复制", show: "显示", keys: "快捷键", close: "关闭", off: "关闭快捷键", on: "启用快捷键",
      list: ["/ 查找", "g b 机器人", "g r 资源", "g p 插件", "g a 活动", "? 帮助", "Esc 关闭"] }
  : { copy: "Copy", copied: "Copied", show: "Show while held", keys: "Keyboard", close: "Close", off: "Switch shortcuts off",
      on: "Switch shortcuts on",
      list: ["/ find", "g b bots", "g r resources", "g p plugins", "g a activity", "? this help", "Esc closes"] };

const element = (name, attributes, ...children) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
};

// Times in the reader's own zone, beside the UTC time in the attribute.
for (const time of document.querySelectorAll("time[datetime]")) {
  const at = new Date(time.dateTime);
  if (!Number.isNaN(at.getTime())) {
    time.title = `${at.toLocaleString(document.documentElement.lang)} · ${time.dateTime}`;
  }
}

// Ids can be copied.
for (const id of document.querySelectorAll("[data-copy]")) {
  const button = element("button", { type: "button", textContent: words.copy });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(id.textContent);
    button.textContent = words.copied;
  });
  id.after(" ", button);
}

// A secret is shown while the button is held.
for (const input of document.querySelectorAll("input[data-secret]")) {
  const button = element("button", { type: "button", textContent: words.show });
  const show = (isShown) => { input.type = isShown ? "text" : "password"; };
  for (const name of ["pointerdown", "keydown"]) button.addEventListener(name, () => show(true));
  for (const name of ["pointerup", "pointerleave", "keyup", "blur"]) button.addEventListener(name, () => show(false));
  input.after(button);
}

// A form is sent once. The button that was pressed is disabled after its name is part of the form.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  if (form.method === "post") {
    form.dataset.sent = "1";
    setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
  }
});
// A page that comes back with the browser's Back button can be sent again. It is not reloaded, because a reload of a
// form's answer would send the form again.
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelectorAll("button").forEach((button) => { button.disabled = false; });
  }
});

// A summary of errors takes the focus.
document.querySelector("[data-focus]")?.focus();

// One menu is open at a time; Esc and a press elsewhere close it.
const menus = [...document.querySelectorAll("details.menu")];
const closeMenus = (except) => menus.forEach((menu) => { if (menu !== except) menu.open = false; });
addEventListener("pointerdown", (event) => closeMenus(event.target.closest?.("details.menu")));
for (const menu of menus) menu.addEventListener("toggle", () => { if (menu.open) closeMenus(menu); });

// On a narrow screen, the side bar is a menu that starts closed.
const side = document.querySelector("details.side");
const narrow = matchMedia("(max-width: 56.25rem)");
const fold = () => { if (side) side.open = !narrow.matches; };
fold();
narrow.addEventListener("change", fold);

// Keyboard shortcuts.
const OFF = "monstrum-shortcuts-off";
const isOff = () => localStorage.getItem(OFF) !== null;

const help = () => {
  const dialog = element("dialog", {}, element("h2", { textContent: words.keys }),
    element("ul", { className: "plain" }, ...words.list.map((text) => element("li", { textContent: text }))));
  const toggle = element("button", { type: "button", textContent: isOff() ? words.on : words.off });
  toggle.addEventListener("click", () => {
    if (isOff()) localStorage.removeItem(OFF); else localStorage.setItem(OFF, "1");
    dialog.close();
  });
  const close = element("button", { type: "button", textContent: words.close });
  close.addEventListener("click", () => dialog.close());
  dialog.append(element("div", { className: "buttons" }, close, toggle));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
};

let isGoing = false;
addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenus();
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") {
    help();
    return;
  }
  if (isOff()) return;
  if (event.key === "/") {
    const find = document.querySelector("[data-find]");
    if (find) {
      event.preventDefault();
      find.focus();
    }
  } else if (isGoing) {
    isGoing = false;
    const page = { b: "bots", r: "resources", p: "plugins", a: "activity" }[event.key];
    const link = page && document.querySelector(`.side a[href$="/${page}"]`);
    if (link) location.assign(link.href);
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  }
});
