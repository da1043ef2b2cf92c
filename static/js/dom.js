// Small helpers that every page uses: elements, requests, toasts.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const ICONS = document.documentElement.dataset.icons;

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `${ICONS}#${name}`);
  svg.append(use);
  return svg;
}

/** An element: its attributes (a `class`, listeners as functions) and its children, text never read as markup. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The value of a `json_script` element. */
export function data(id) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
}

export function csrfToken() {
  return document.body.dataset.csrf;
}

/** What a failed answer says of itself, in one sentence. */
export async function sentence(response) {
  try {
    const body = await response.json();
    const text = body.error?.message ?? body.error ?? body.detail ?? body.message;
    if (typeof text === "string") return text;
  } catch {
    // not JSON: fall through to the status
  }
  if (response.status === 403) return "Your session has ended or lacks the permission. Reload the page and sign in.";
  return `The dashboard answered ${response.status}. Try again, and look at the server's log if it stays.`;
}

/** fetch with JSON both ways and the CSRF token; throws an Error whose message can be shown. */
export async function request(url, { method = "GET", json, body, headers = {}, signal } = {}) {
  const options = { method, headers: { Accept: "application/json", ...headers }, signal, credentials: "same-origin" };
  if (method !== "GET") options.headers["X-CSRFToken"] = csrfToken();
  if (json !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(json);
  } else if (body !== undefined) options.body = body;
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("The dashboard does not answer. It is tried again by itself."), { offline: true });
  }
  if (!response.ok) {
    const copy = response.clone();
    const failure = new Error(await sentence(response));
    throw Object.assign(failure, { status: response.status, body: await copy.json().catch(() => null) });
  }
  return response.status === 204 ? null : response.json();
}

export function toast(text, kind = "ready") {
  const note = el(
    "div",
    { class: `note ${kind}`, role: kind === "failed" ? "alert" : "status" },
    icon(kind),
    el("p", {}, text),
    el("button", { class: "button quiet small icon-only", "aria-label": "Dismiss", click: () => note.remove() }, icon("close")),
  );
  $("#toasts").append(note);
  if (kind !== "failed") setTimeout(() => note.remove(), 8000);
}

export function debounce(wait, action) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}
