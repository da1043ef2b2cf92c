// Elements of the page: finds them, creates them, and shows errors next to them.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {string | number | boolean | null | undefined} AttributeValue
 * @typedef {{ [name: string]: AttributeValue | EventListener }} Attributes
 * @typedef {Node | string | null | undefined} Child
 */

/**
 * Returns the first element that a CSS selector finds, or null.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {HTMLElement | null}
 */
export function $(selector, root = document) {
  return root.querySelector(selector);
}

/**
 * Returns every element that a CSS selector finds, in the order of the document.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {HTMLElement[]}
 */
export function $$(selector, root = document) {
  return [...root.querySelectorAll(/** @type {"div"} */ (selector))];
}

/**
 * Returns the first element of the given class that a selector finds; throws if the page has none.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} kind such as HTMLInputElement
 * @param {ParentNode} [root]
 * @returns {T}
 */
export function need(selector, kind, root = document) {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`The page has no ${kind.name} at ${selector}.`);
  return found;
}

/**
 * Returns an icon from the page's icon file.
 * @param {string} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const file = document.documentElement.dataset.icons;
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `${file}#${name}` }));
}

/**
 * Makes an SVG element.
 * @param {string} tag
 * @param {{ [name: string]: string | number }} [attributes]
 * @param {...SVGElement} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * Makes an element. An attribute whose value is a function becomes a listener; a text among the children is never markup.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children null and undefined are left out
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * Returns the value of the `json_script` element of Django with this id, or null if the page has no such element.
 * The caller casts it to its type.
 * @param {string} id
 * @returns {unknown}
 */
export function data(id) {
  const text = document.getElementById(id)?.textContent;
  return text ? JSON.parse(text) : null;
}

/**
 * Shows an error below a part of the page, until a person dismisses the error or another error replaces it.
 * @param {Element} part
 * @param {string} text "" removes the error
 */
export function complain(part, text) {
  if (part.nextElementSibling?.matches(".complaint")) part.nextElementSibling.remove();
  if (!text) return;
  const dismiss = { class: "button quiet small icon-only", type: "button", "aria-label": "Dismiss", "data-close": true };
  const note = el(
    "div",
    { class: "note failed complaint", role: "alert" },
    icon("failed"),
    el("p", {}, text),
    el("button", dismiss, icon("close")),
  );
  part.after(note);
  note.scrollIntoView({ block: "nearest" });
}

/**
 * Lets a person save a file.
 * @param {string} name
 * @param {Uint8Array<ArrayBuffer> | string} content
 * @param {string} [type]
 */
export function saveFile(name, content, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
