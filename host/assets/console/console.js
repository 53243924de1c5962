// Enhances the pages of the console. Without this script, every page reads and every form saves.

const words = JSON.parse(document.body.dataset.words);

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

// A field that an error names is marked and has the message beside it. A folded part with such a field is open.
for (const error of document.querySelectorAll("[data-field]")) {
  const named = document.getElementById(error.dataset.field);
  const field = named?.matches("fieldset") ? named.querySelector("textarea") : named;
  if (!field) continue;
  const folded = field.closest("details");
  if (folded) folded.open = true;
  // The server has marked the others.
  if (field === folded || field.closest(".faulty")) continue;
  field.setAttribute("aria-invalid", "true");
  const note = element("p", { className: "fault", id: `${field.id}-fault`, textContent: error.querySelector("span").textContent });
  field.closest(".field")?.classList.add("faulty");
  field.after(note);
  field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} ${note.id}`.trim());
}

// A link to a field opens the folded part that has it.
const linked = document.getElementById(location.hash.slice(1));
const hiding = linked?.closest("details");
if (hiding && !hiding.open) {
  hiding.open = true;
  linked.focus();
}

// A name that is ticked or typed chooses "only these". A role without names beside it is not restricted.
const NAMED = '[name$=".known"], [name$=".others"], [name^="scope.entries."]';
const only = (part, value) => part?.querySelector(`input[type="radio"][name*="mode"][value="${value}"]`);
document.addEventListener("input", (event) => {
  const { target } = event;
  if (!target.matches(NAMED)) return;
  const isGiven = target.type === "checkbox" ? target.checked : target.value.trim() !== "";
  const choice = isGiven && only(target.closest("fieldset"), "only");
  if (choice) choice.checked = true;
});
document.querySelector("select#role_id")?.addEventListener("change", (event) => {
  const part = document.getElementById("operations");
  const isGiven = part && [...part.querySelectorAll(NAMED)]
    .some((field) => (field.type === "checkbox" ? field.checked : field.value.trim() !== ""));
  const choice = !isGiven && only(part, event.target.value ? "all" : "only");
  if (choice) choice.checked = true;
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

// Moves the focus to the link of the next or the previous row, which Enter then opens.
const goToRow = (isNext) => {
  const links = [...document.querySelectorAll("main tbody th a[href], main .cards h3 a[href]")]
    .filter((link) => link.checkVisibility());
  const current = document.activeElement.closest("tr, li");
  const at = links.findIndex((link) => link.closest("tr, li") === current);
  links[isNext ? at + 1 : at - 1]?.focus();
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
  } else if (event.key === "j" || event.key === "k") {
    goToRow(event.key === "j");
  } else if (event.key === "p") {
    document.querySelector("[data-pause]")?.click();
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  }
});

// The live calls: a stream adds each call when it ends.
const CALLS_MAX = 200;
const PAINT_MS = 250;
const RETRIES_MS = [2000, 5000, 15000, 60000];
const HIDDEN = /[\p{Cc}\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

// Writes invisible characters as escapes, as the server does.
const visible = (text) => text.replace(HIDDEN, (character) =>
  (character === "\n" || character === "\t" ? character : `\\u{${character.codePointAt(0).toString(16)}}`));

const cut = (text, max) => {
  const characters = [...text.slice(0, max * 2 + 2)];
  return characters.length > max ? `${characters.slice(0, max).join("")}…` : text;
};

const filled = (text, value) => text.replace("{0}", () => String(value));

const clock = (time) => {
  const at = new Date(time.dateTime);
  if (Number.isNaN(at.getTime())) return;
  time.textContent = at.toLocaleTimeString(document.documentElement.lang);
  time.title = `${at.toLocaleString(document.documentElement.lang)} · ${time.dateTime}`;
};

// Returns a function that makes the row of a call.
const rowMaker = (live, told) => {
  const labels = [...live.querySelectorAll("thead th")].map((head) => head.textContent);
  const names = (id) => new Map([...document.querySelectorAll(`#${id} option`)].map((option) => [option.value, option.textContent]));
  const bots = names("f-bot");
  const resources = names("f-resource");
  const to = (base, id, text) => element("a", { href: `${base}/${encodeURIComponent(id)}`, textContent: text });
  const named = (base, known, id) => (id ? [to(base, id, known.get(id) ?? visible(id))] : []);
  return (call) => {
    const { class: shape, word } = told.statuses[call.status] ?? { class: "error", word: visible(String(call.status)) };
    const time = element("time", { dateTime: call.started_at });
    clock(time);
    const cells = [
      named(live.dataset.bots, bots, call.bot_id),
      named(live.dataset.resources, resources, call.resource_id),
      [element("span", { className: `status ${shape}`, textContent: word })],
      [element("code", { className: "cut", textContent: visible(cut(JSON.stringify(call.params ?? null), 120)) })],
      call.duration_ms == null ? [] : [filled(told.ms, call.duration_ms)],
      [time],
    ].map((children, at) => {
      const cell = element("td", {}, ...children);
      cell.dataset.label = labels[at + 1] ?? "";
      return cell;
    });
    cells[4].className = "number";
    const head = element("th", { scope: "row" }, to(live.dataset.calls, call.request_id, visible(call.tool ?? "")));
    const row = element("tr", {}, head, ...cells);
    row.dataset.id = call.request_id;
    return row;
  };
};

const follow = (live) => {
  const told = JSON.parse(live.dataset.words);
  const makeRow = rowMaker(live, told);
  const body = live.querySelector("tbody");
  const state = live.querySelector("[data-live-state]");
  const note = element("p", { className: "notice denied", hidden: true });
  const pause = element("button", { type: "button", textContent: told.pause });
  const rows = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  const waiting = new Map();
  let came = 0;
  let leftOut = 0;
  let condition = "connecting";
  let isHeld = false;
  let isTouched = false;
  let source = null;
  let last = "";
  let tries = 0;
  let painting = 0;
  let retrying = 0;

  for (const time of body.querySelectorAll("time")) clock(time);
  pause.dataset.pause = "";
  live.querySelector("[data-live-buttons]").append(pause);
  live.querySelector("[data-live-buttons]").after(note);

  const tell = () => {
    const isPaused = condition === "live" && (isHeld || isTouched);
    const text = isPaused ? filled(told.paused, came) : told[condition];
    if (state.textContent !== text) state.textContent = text;
  };

  const paint = () => {
    painting = 0;
    if (!isHeld && !isTouched && waiting.size > 0) {
      const fresh = [...waiting.values()].map(makeRow).reverse();
      for (const row of fresh) rows.set(row.dataset.id, row);
      body.prepend(...fresh);
      waiting.clear();
      came = 0;
      while (body.rows.length > CALLS_MAX) {
        rows.delete(body.lastElementChild.dataset.id);
        body.lastElementChild.remove();
      }
      live.querySelector("[data-live-empty]")?.remove();
    }
    tell();
  };
  const paintSoon = () => { painting ||= setTimeout(paint, PAINT_MS); };

  const take = (call) => {
    const row = rows.get(call.request_id);
    if (row) {
      // A call that the list shows as running has ended.
      if (!row.contains(document.activeElement)) {
        const changed = makeRow(call);
        rows.set(call.request_id, changed);
        row.replaceWith(changed);
      }
      return;
    }
    if (!waiting.has(call.request_id)) came += 1;
    waiting.set(call.request_id, call);
    if (waiting.size > CALLS_MAX) waiting.delete(waiting.keys().next().value);
    paintSoon();
  };

  const leave = (count) => {
    leftOut = count === null || leftOut === null ? null : leftOut + count;
    note.textContent = leftOut === null ? told.left_out_some : filled(told.left_out, leftOut);
    note.hidden = false;
  };

  const close = () => {
    clearTimeout(retrying);
    source?.close();
    source = null;
  };

  const open = () => {
    if (source || document.hidden || condition === "over") return;
    const url = new URL(live.dataset.live, location.href);
    if (last) url.searchParams.set("cursor", last);
    source = new EventSource(url);
    source.addEventListener("open", () => {
      condition = "live";
      tries = 0;
      tell();
    });
    source.addEventListener("call", (event) => {
      last = event.lastEventId || last;
      take(JSON.parse(event.data));
    });
    source.addEventListener("lost", (event) => leave(JSON.parse(event.data).count));
    source.addEventListener("over", () => {
      condition = "over";
      close();
      tell();
    });
    source.addEventListener("error", () => {
      // The browser connects again by itself, unless the server has refused.
      condition = "lost";
      if (source.readyState === EventSource.CLOSED) {
        condition = "refused";
        close();
        retrying = setTimeout(open, RETRIES_MS[Math.min(tries, RETRIES_MS.length - 1)]);
        tries += 1;
      }
      tell();
    });
  };

  const touch = (is) => {
    isTouched = is;
    paintSoon();
  };
  body.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") touch(true); });
  body.addEventListener("pointerleave", () => touch(false));
  body.addEventListener("focusin", () => touch(true));
  body.addEventListener("focusout", () => touch(false));
  pause.addEventListener("click", () => {
    isHeld = !isHeld;
    pause.textContent = isHeld ? told.resume : told.pause;
    paint();
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  tell();
  open();
};

const live = document.querySelector("[data-live]");
if (live) follow(live);

// Calls a function soon after each event of a stream that says that something has changed. Hidden tabs have no stream.
const listen = (path, look) => {
  let source = null;
  let isOver = false;
  let soon = 0;
  const close = () => {
    source?.close();
    source = null;
  };
  const lookSoon = () => {
    soon ||= setTimeout(() => {
      soon = 0;
      look();
    }, PAINT_MS);
  };
  const open = () => {
    if (source || document.hidden || isOver) return;
    source = new EventSource(path);
    source.addEventListener("changed", lookSoon);
    source.addEventListener("over", () => {
      isOver = true;
      close();
      lookSoon();
    });
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
};

// An authorization that a person confirms elsewhere, a task or a run: the page is read again when its state has changed. It
// stays as it is while a person reads an open fold. A page with a stream asks seldom by itself.
const LOOK_MS = 3000;
const LOOK_WITH_STREAM_MS = 30000;

const watch = (waiting) => {
  let isAsking = false;
  let isMissed = false;
  const { stream } = waiting.dataset;
  const look = async () => {
    isMissed = isAsking;
    if (isAsking || document.hidden || waiting.querySelector("details[open]")) return;
    isAsking = true;
    try {
      const answer = await fetch(waiting.dataset.wait, { redirect: "manual" });
      // A session that has ended redirects. A server that is busy or starting is asked again.
      const state = answer.ok ? await answer.text() : "";
      if (answer.status < 500 && state !== waiting.dataset.state) location.reload();
    } catch {
      // The server cannot be reached. The next look can succeed.
    } finally {
      isAsking = false;
    }
    if (isMissed) look();
  };
  setInterval(look, stream ? LOOK_WITH_STREAM_MS : LOOK_MS);
  if (stream) {
    listen(stream, look);
    // A fold that is closed again lets the page be read again.
    waiting.addEventListener("toggle", look, true);
  }
  document.addEventListener("visibilitychange", look);
};

const waiting = document.querySelector("[data-wait]");
if (waiting) watch(waiting);
