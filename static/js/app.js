// What every page has: keyboard, theme, relative times, dialogs, copying, filters, regions that refresh themselves.

import { $, $$, csrfToken, icon, toast } from "./dom.js";
import { ago } from "./format.js";

const PLACES = { o: "overview", m: "models", j: "jobs", s: "servers", a: "activity", e: "settings" };
let goPressed = 0;
let placesLoaded = Promise.resolve();

function typing(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

function openPalette() {
  const dialog = $("#palette");
  if (!dialog.open) dialog.showModal();
  const field = $("input", dialog);
  field.value = "";
  field.focus();
  placesLoaded = loadPlaces().then(() => choose(field.value));
}

/** Asked for anew each time, so that no page has to carry every model's name. */
async function loadPlaces() {
  const list = $("#palette-list");
  const answer = await fetch(list.dataset.source);
  if (answer.ok) list.innerHTML = await answer.text();
}

function choose(text) {
  const wanted = text.trim().toLowerCase();
  const links = $$("#palette-list a");
  for (const link of links) {
    link.parentElement.hidden = !link.textContent.toLowerCase().includes(wanted);
    link.setAttribute("aria-selected", "false");
  }
  links.find((link) => !link.parentElement.hidden)?.setAttribute("aria-selected", "true");
  $("#palette-none").hidden = links.some((link) => !link.parentElement.hidden);
}

function stepPalette(by) {
  const shown = $$("#palette-list a").filter((link) => !link.parentElement.hidden);
  const at = shown.findIndex((link) => link.getAttribute("aria-selected") === "true");
  shown.forEach((link) => link.setAttribute("aria-selected", "false"));
  const next = shown[(at + by + shown.length) % shown.length];
  next?.setAttribute("aria-selected", "true");
  next?.scrollIntoView({ block: "nearest" });
}

async function onPaletteKey(event) {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    stepPalette(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter") {
    event.preventDefault();
    await placesLoaded;
    $('#palette-list a[aria-selected="true"]')?.click();
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || $("dialog[open]")) return;
  if (event.key === "/") {
    event.preventDefault();
    const filter = $("[data-filter]");
    if (filter) filter.focus();
    else openPalette();
  } else if (event.key === "?") {
    event.preventDefault();
    $("#help").showModal();
  } else if (event.key === "g") {
    goPressed = event.timeStamp;
  } else if (PLACES[event.key] && event.timeStamp - goPressed < 1500) {
    goPressed = 0;
    $(`[data-place="${PLACES[event.key]}"]`)?.click();
  } else if (event.key === "n" && $("[data-new]")) {
    $("[data-new]").click();
  }
}

function keepTimesCurrent() {
  for (const time of $$("time[data-ago]")) {
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

async function copy(button) {
  const source = button.dataset.copyText ?? $(button.dataset.copy).textContent;
  await navigator.clipboard.writeText(source);
  button.replaceChildren(icon("ready"), ...(button.classList.contains("icon-only") ? [] : ["Copied"]));
  setTimeout(() => {
    button.replaceChildren(icon("copy"), ...(button.classList.contains("icon-only") ? [] : ["Copy"]));
  }, 1600);
}

function setTheme(choice) {
  const root = document.documentElement;
  if (choice === "system") delete root.dataset.theme;
  else root.dataset.theme = choice;
  const age = choice === "system" ? 0 : 31536000;
  document.cookie = `slipway_theme=${choice}; path=/; max-age=${age}; samesite=lax`;
  document.dispatchEvent(new CustomEvent("theme"));
}

/** Forms with data-confirm say what will happen and ask once; data-confirm-name must be typed. */
function confirmFirst(event) {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.confirmed) return;
  event.preventDefault();
  const dialog = $("#confirm");
  const submitter = event.submitter;
  const name = form.dataset.confirmName;
  $("[data-title]", dialog).textContent = form.dataset.confirmTitle ?? submitter?.textContent.trim() ?? "Go on?";
  $("[data-text]", dialog).textContent = form.dataset.confirm;
  $("[data-name-field]", dialog).hidden = !name;
  $("[data-name]", dialog).textContent = name ?? "";
  const field = $("input", dialog);
  const yes = $("[data-yes]", dialog);
  field.value = "";
  field.oninput = () => (yes.disabled = Boolean(name) && field.value !== name);
  field.oninput();
  yes.textContent = submitter?.textContent.trim() ?? "Go on";
  yes.className = form.dataset.danger === undefined ? "button primary" : "button danger";
  yes.onclick = () => {
    form.dataset.confirmed = "yes";
    dialog.close();
    form.requestSubmit(submitter);
    delete form.dataset.confirmed;
  };
  dialog.showModal();
  if (name) field.focus();
}

/** A filter narrows the rows of its list at once and keeps the words in the URL. */
function filterRows(input) {
  const words = input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const rows = $$(`${input.dataset.filter} [data-row]`);
  let shown = 0;
  for (const row of rows) {
    const text = (row.dataset.row || row.textContent).toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  const none = $(`${input.dataset.filter} [data-none]`);
  if (none) none.hidden = shown > 0;
}

function rememberFilter(input) {
  const url = new URL(location.href);
  if (input.value.trim()) url.searchParams.set(input.name, input.value.trim());
  else url.searchParams.delete(input.name);
  url.searchParams.delete("page");
  history.replaceState(history.state, "", url);
  for (const region of $$("[data-refresh]")) {
    const address = new URL(region.getAttribute("hx-get"), location.href);
    address.search = url.search;
    region.setAttribute("hx-get", address.pathname + address.search);
    window.htmx?.process(region);
    window.htmx?.trigger(region, "narrowed"); // the rows that fit may be on another page
  }
}

/** A region that could not refresh says how old it is, until it can again. */
function markRegion(event, fresh) {
  const region = event.target.closest?.("[data-refresh]");
  if (!region) return;
  const note = $("[data-region-note]", region.parentElement) ?? $("[data-region-note]");
  if (fresh) region.dataset.at = String(Date.now());
  region.classList.toggle("is-stale", !fresh);
  if (!note) return;
  note.hidden = fresh;
  const seconds = Math.round((Date.now() - Number(region.dataset.at ?? performance.timeOrigin)) / 1000);
  note.textContent = `last update ${seconds} s ago, reconnecting`;
}

/** A refresh must not take away what a person opened, is asked about, is about to press, focused by keyboard, types
    into or marked to copy. */
function inUse(region) {
  if ($("dialog[open]")) return true;
  const marked = getSelection();
  const selecting = !marked.isCollapsed && region.contains(marked.anchorNode);
  return selecting || $("details[open], :focus-visible, button:hover, :active", region) !== null;
}

function showHealth() {
  const health = $("#health");
  if (!health) return;
  const { favicon, failing } = health.dataset;
  const link = $('link[rel="icon"]');
  if (link.getAttribute("href") !== favicon) link.setAttribute("href", favicon);
  const plain = document.title.replace(/^\(\d+ failed\) /, "");
  document.title = Number(failing) > 0 ? `(${failing} failed) ${plain}` : plain;
}

document.addEventListener("keydown", onKey);
document.addEventListener("submit", confirmFirst);
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    event.preventDefault();
    if (opener.dataset.dialog === "palette") openPalette();
    else document.getElementById(opener.dataset.dialog)?.showModal();
  }
  const closer = event.target.closest("[data-close]");
  if (closer) closer.closest("dialog, .note")?.[closer.closest("dialog") ? "close" : "remove"]();
  if (event.target instanceof HTMLDialogElement) event.target.close();
  const copier = event.target.closest("[data-copy], [data-copy-text]");
  if (copier) copy(copier).catch(() => toast("The browser did not allow copying. Select the text instead.", "failed"));
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button, input, select, label, form") && !getSelection().toString()) {
    $("a", row)?.click();
  }
});
document.addEventListener("input", (event) => {
  if (event.target.matches("[data-filter]")) {
    filterRows(event.target);
    rememberFilter(event.target);
  }
  if (event.target.matches("#palette input")) choose(event.target.value);
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-theme-choice]")) setTheme(event.target.value);
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});
$("#palette input")?.addEventListener("keydown", onPaletteKey);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches?.("[data-filter]")) {
    event.target.value = "";
    event.target.dispatchEvent(new Event("input", { bubbles: true }));
    event.target.blur();
  }
});

document.body.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRFToken"] = csrfToken();
});
document.body.addEventListener("htmx:afterSwap", () => {
  keepTimesCurrent();
  $$("[data-filter]").forEach(filterRows);
  showHealth();
});
document.body.addEventListener("htmx:afterRequest", (event) => markRegion(event, event.detail.successful));
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const region = event.detail.requestConfig.elt;
  if (region.matches("[data-refresh]") && inUse(region)) event.detail.shouldSwap = false;
});

$$("[data-filter]").forEach(filterRows);
keepTimesCurrent();
showHealth();
setInterval(keepTimesCurrent, 5000);
