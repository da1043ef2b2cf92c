// The configuration as a form and as text. After a change of one, the server, which knows the rules, updates the other.

import { $, $$, data, el, need } from "../core/dom.js";
import { messageOf, request } from "../core/request.js";
import { RESHAPE, differing, same, shown, shownReshape } from "./fields.js";

/**
 * @import { Fields } from "./fields.js"
 *
 * @typedef {object} Problem
 * @property {string} severity "error" or "warning"
 * @property {string} message
 * @property {number | null} line the line of the text, from 1
 * @property {string} field the path of the field, such as `inputs[0].dims`; "" for none
 */

/**
 * The server's preview of a text (dashboard/configuration/editor.py, preview_response).
 * @typedef {object} Preview
 * @property {string} text
 * @property {Fields} fields the fields of the form; none if the text cannot be parsed
 * @property {Problem[]} problems
 * @property {boolean} valid
 * @property {string} effect_sentence the effect of applying the text
 * @property {string} refused the permission that this person lacks to apply the text; "" for none
 * @property {string} diff the difference to the applied configuration
 * @property {string[]} dropped_comments the comments that would be lost by applying the text
 * @property {string} [live] only for an upload: HTML about the changes for others after it is live
 *
 * @typedef {HTMLInputElement | HTMLSelectElement} Control
 */

const DELAY_MS = 300;
const LISTS = ["instance_groups", "inputs", "outputs", "queue_policies", "warmups", "parameters"];

export class ConfigurationEditor {
  /** @type {Problem[]} */
  #problems = [];
  /**
   * The newest request to the server: a late answer to an older request is dropped.
   * @type {symbol | null}
   */
  #asked = null;

  /**
   * @param {HTMLElement} root
   * @param {(preview: Preview) => void} onPreview called after each answer of the server
   */
  constructor(root, onPreview) {
    this.root = root;
    this.form = need("#config-form", HTMLFormElement, root);
    this.text = need("#config-text", HTMLTextAreaElement, root);
    this.gutter = need("#config-gutter", HTMLElement, root);
    /** The applied configuration; a page that shows a refused text again begins with that text instead. */
    this.original = /** @type {{ text: string, fields: Fields }} */ (data("config-original"));
    this.original.text = this.original.text.replaceAll("\r\n", "\n"); // the line ends of a text area
    /** The text that the form edits, and its fields. */
    this.base = this.text.value;
    this.baseFields = this.base === this.original.text ? this.original.fields : {};
    this.onPreview = onPreview;
    this.#listen();
    this.#showDependent();
    this.#drawGutter();
    if (this.text.value) this.#previewText();
  }

  /** Whether the text differs from the applied configuration. */
  get changed() {
    return this.text.value !== this.original.text;
  }

  /** Goes back to the applied configuration. */
  reset() {
    this.use(this.original.text);
  }

  /**
   * Replaces the text.
   * @param {string} text
   */
  use(text) {
    this.text.value = text;
    this.base = text;
    this.#drawGutter();
    this.#previewText();
  }

  #listen() {
    const fromForm = debounce(DELAY_MS, () => this.#previewForm());
    const fromText = debounce(DELAY_MS, () => this.#previewText());
    this.form.addEventListener("input", () => {
      this.#asked = null; // the answer for an older text would undo the typing
      this.#showDependent();
      fromForm();
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("click", (event) => {
      if (event.target instanceof Element && this.#editRows(event.target)) fromForm();
    });
    this.text.addEventListener("input", () => {
      this.#asked = null;
      this.base = this.text.value;
      this.#drawGutter();
      fromText();
    });
    this.text.addEventListener("scroll", () => (this.gutter.scrollTop = this.text.scrollTop));
    this.text.addEventListener("keydown", (event) => this.#indent(event));
  }

  // -- the form ------------------------------------------------------------------------------------------------------

  /**
   * Returns the controls of the form that are single fields.
   * @returns {Control[]}
   */
  #controls() {
    return controlsIn(this.form).filter((control) => control.name);
  }

  /** @returns {Fields} */
  #fields() {
    /** @type {Fields} */
    const fields = {};
    for (const control of this.#controls()) fields[control.name] = isCheckbox(control) ? control.checked : control.value;
    for (const list of LISTS) fields[list] = $$(`[data-rows="${list}"] > [data-item]`, this.form).map(rowValues);
    return fields;
  }

  /**
   * Puts the server's fields into the form; a control with the focus keeps its value.
   * @param {Fields} fields
   */
  #fill(fields) {
    for (const control of this.#controls()) {
      if (!(control.name in fields) || control === document.activeElement) continue;
      if (isCheckbox(control)) control.checked = Boolean(fields[control.name]);
      else control.value = shown(fields[control.name]);
    }
    for (const list of LISTS) this.#fillRows(list, /** @type {Fields[]} */ (fields[list] ?? []));
    this.#showDependent();
  }

  /**
   * @param {string} list
   * @param {Fields[]} items
   */
  #fillRows(list, items) {
    const box = need(`[data-rows="${list}"]`, HTMLElement, this.form);
    while (box.children.length > items.length) box.lastElementChild?.remove();
    while (box.children.length < items.length) box.append(this.#newRow(list));
    items.forEach((item, index) => {
      for (const control of controlsIn(box.children[index])) {
        const key = control.dataset.key;
        if (!key || control === document.activeElement) continue;
        if (isCheckbox(control)) control.checked = Boolean(item[key]);
        else control.value = key === RESHAPE ? shownReshape(item[key]) : shown(item[key]);
      }
    });
    need(`[data-empty-for="${list}"]`, HTMLElement, this.form).hidden = items.length > 0;
  }

  /** @param {string} list */
  #newRow(list) {
    const row = need(`#row-${list}`, HTMLTemplateElement, this.root).content.firstElementChild?.cloneNode(true);
    if (!(row instanceof HTMLElement)) throw new Error(`The page has no row for ${list}.`);
    return row;
  }

  /**
   * Adds or removes a row if a person pressed a button for rows. Returns whether it was such a button.
   * @param {Element} target
   */
  #editRows(target) {
    const list = target.closest("[data-add]")?.getAttribute("data-add");
    const remove = target.closest("[data-remove]");
    if (!list && !remove) return false;
    if (list) {
      const row = this.#newRow(list);
      const box = need(`[data-rows="${list}"]`, HTMLElement, this.form);
      const next = $("[data-next]", row);
      if (next instanceof HTMLInputElement) next.value = String(box.children.length + 1);
      box.append(row);
      need(`[data-empty-for="${list}"]`, HTMLElement, this.form).hidden = true;
      $("input, select", row)?.focus();
    } else remove?.closest("[data-item]")?.remove();
    this.#asked = null;
    return true;
  }

  /** Shows the parts of the form that belong to the chosen options. */
  #showDependent() {
    for (const part of $$("[data-when]", this.form)) {
      const [name, value] = (part.dataset.when ?? "").split("=");
      const control = this.#controls().find((one) => one.name === name);
      if (!control) continue;
      part.hidden = value === undefined ? !(isCheckbox(control) && control.checked) : control.value !== value;
    }
  }

  // -- the text ------------------------------------------------------------------------------------------------------

  #drawGutter() {
    const before = new Set(this.original.text.split("\n"));
    const bad = new Set(this.#problems.filter(({ severity }) => severity === "error").map(({ line }) => line));
    const numbers = this.text.value.split("\n").map((line, index) => {
      const marks = [bad.has(index + 1) && "bad", !before.has(line) && line.trim() && "changed-line"];
      return el("span", { class: marks.filter(Boolean).join(" ") || null }, String(index + 1));
    });
    this.gutter.replaceChildren(...numbers, el("span", {}, " "), el("span", {}, " "));
    this.gutter.scrollTop = this.text.scrollTop;
  }

  /**
   * Indents a new line after Enter. Tab leaves the field, as in other fields.
   * @param {KeyboardEvent} event
   */
  #indent(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    const { selectionStart: at, selectionEnd: end, value } = this.text;
    const line = value.slice(value.lastIndexOf("\n", at - 1) + 1, at);
    const indentation = indentationAfter(line);
    if (!indentation) return;
    event.preventDefault();
    this.text.setRangeText(`\n${indentation}`, at, end, "end");
    this.text.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** @param {number} line from 1 */
  #goTo(line) {
    const lines = this.text.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.text.focus();
    this.text.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    this.text.scrollTop = Math.max(0, (line - 6) * (this.text.scrollHeight / (lines.length + 1)));
  }

  // -- the server's answer -------------------------------------------------------------------------------------------

  /** Asks the server to write the changed fields of the form into the text, so that the rest of the text stays unchanged. */
  async #previewForm() {
    const preview = await this.#ask({ base: this.base, fields: differing(this.#fields(), this.baseFields) });
    if (!preview) return;
    this.text.value = preview.text;
    // While the form is invalid, its changes apply to the last valid text.
    if (preview.valid) [this.base, this.baseFields] = [preview.text, preview.fields];
    this.#show(preview);
  }

  async #previewText() {
    const preview = await this.#ask({ text: this.text.value });
    if (!preview) return;
    if (Object.keys(preview.fields).length) {
      this.#fill(preview.fields);
      this.baseFields = preview.fields;
    }
    this.base = this.text.value;
    this.#show(preview);
  }

  /**
   * Returns the server's answer; null if the request failed, or if there is a newer request.
   * @param {{ text: string } | { base: string, fields: Fields }} question
   * @returns {Promise<Preview | null>}
   */
  async #ask(question) {
    const asked = (this.#asked = Symbol("preview"));
    this.#say("checking");
    try {
      const url = this.root.dataset.preview ?? "";
      const preview = /** @type {Preview} */ (await request(url, { method: "POST", json: question }));
      return asked === this.#asked ? preview : null;
    } catch (error) {
      if (asked === this.#asked) this.#say(messageOf(error));
      return null;
    }
  }

  /** @param {Preview} preview */
  #show(preview) {
    this.#problems = preview.problems;
    this.#drawGutter();
    this.#showProblems();
    this.#markChanges();
    this.onPreview(preview);
  }

  /** @param {string} text */
  #say(text) {
    need("#config-status", HTMLElement, this.root).textContent = text;
  }

  #showProblems() {
    this.#say(verdict(this.#problems));
    const rows = this.#problems.map(({ severity, line, message }) => {
      const text = line ? `Line ${line}: ${message}` : message;
      return el("li", { class: severity }, el("button", { type: "button", click: () => line && this.#goTo(line) }, text));
    });
    need("#config-problems", HTMLElement, this.root).replaceChildren(...rows);
    for (const part of $$("[data-field]", this.form)) this.#showFieldError(part);
    for (const list of LISTS) this.#showRowProblems(list);
  }

  /**
   * Shows the problem of a field next to the field; for a list, only a problem that belongs to none of its controls.
   * @param {HTMLElement} part
   */
  #showFieldError(part) {
    const name = part.dataset.field ?? "";
    const isList = LISTS.includes(name);
    const own = this.#problems.find(({ field }) => placeOf(field).name === name && !(isList && this.#controlOf(field)));
    const line = $(`:scope > [data-error], :scope > .card-body > [data-error]`, part);
    if (line) sayAt(line, own);
    const control = $("input, select", part);
    if (!isList && control) markInvalid(control, own);
  }

  /**
   * Shows the problem of each control in a list's rows below the control.
   * @param {string} list
   */
  #showRowProblems(list) {
    const box = need(`[data-rows="${list}"]`, HTMLElement, this.form);
    for (const line of $$("[data-row-error]", box)) line.remove();
    for (const control of controlsIn(box)) markInvalid(control, undefined);
    for (const problem of this.#problems) {
      const control = placeOf(problem.field).name === list ? this.#controlOf(problem.field) : null;
      if (!control || control.getAttribute("aria-invalid")) continue;
      const line = el("span", { "data-row-error": true });
      sayAt(line, problem);
      control.closest("label")?.append(line);
      markInvalid(control, problem);
    }
  }

  /**
   * Returns the control, in a row of a list, that a problem is about; null if the problem is about the whole row or list.
   * @param {string} field
   */
  #controlOf(field) {
    const { name, row, key } = placeOf(field);
    const item = row < 0 ? undefined : $$(`[data-rows="${name}"] > [data-item]`, this.form)[row];
    return item && key ? $(`[data-key="${key}"]:not([type="hidden"])`, item) : null;
  }

  #markChanges() {
    const now = this.#fields();
    for (const part of $$("[data-field]", this.form)) {
      const name = part.dataset.field ?? "";
      const changed = !same(now[name], this.original.fields[name]);
      if (LISTS.includes(name)) $("h2", part)?.parentElement?.classList.toggle("changed-head", changed);
      else part.classList.toggle("changed", changed);
    }
  }
}

/**
 * Starts the editor of the page.
 * @param {(preview: Preview) => void} onPreview called after each answer of the server
 * @returns {ConfigurationEditor | null} null if the page has no editor, or has already started it
 */
export function startEditor(onPreview) {
  const root = $("#config");
  if (!root || root.dataset.started) return null;
  root.dataset.started = "yes";
  return new ConfigurationEditor(root, onPreview);
}

/**
 * Returns the indentation of a new line: the indentation of the previous line, and two more spaces after an open bracket.
 * @param {string} line the previous line up to the cursor
 */
export function indentationAfter(line) {
  const spaces = line.match(/^\s*/)?.[0] ?? "";
  return /[{[]\s*$/.test(line) ? `${spaces}  ` : spaces;
}

/**
 * Returns the place of a problem's field: `inputs[0].dims` is the control `dims` in row 0 of the list `inputs`.
 * @param {string} field
 */
export function placeOf(field) {
  const [, name = "", row = "-1", key = ""] = field.match(/^(\w*)(?:\[(\d+)\])?(?:\.(\w+))?/) ?? [];
  return { name, row: Number(row), key };
}

/**
 * Returns the verdict on a text: its number of errors, or else its number of warnings, or else "valid".
 * @param {Problem[]} problems
 */
export function verdict(problems) {
  const errors = problems.filter(({ severity }) => severity === "error").length;
  const [count, word] = errors ? [errors, "error"] : [problems.length, "warning"];
  return count ? `${count} ${word}${count > 1 ? "s" : ""}` : "valid";
}

/**
 * @param {HTMLElement} line
 * @param {Problem | undefined} problem undefined hides the line
 */
function sayAt(line, problem) {
  line.hidden = !problem;
  line.className = problem?.severity === "warning" ? "warning-text" : "error-text";
  line.textContent = problem?.message ?? "";
}

/**
 * @param {HTMLElement} control
 * @param {Problem | undefined} problem
 */
function markInvalid(control, problem) {
  if (problem?.severity === "error") control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/**
 * @param {Element} root
 * @returns {Control[]}
 */
function controlsIn(root) {
  return [...root.querySelectorAll("input, select")].filter(
    (control) => control instanceof HTMLInputElement || control instanceof HTMLSelectElement,
  );
}

/**
 * @param {Control} control
 * @returns {control is HTMLInputElement}
 */
function isCheckbox(control) {
  return control instanceof HTMLInputElement && control.type === "checkbox";
}

/**
 * @param {HTMLElement} row
 * @returns {Fields}
 */
function rowValues(row) {
  /** @type {Fields} */
  const values = {};
  for (const control of controlsIn(row)) {
    if (control.dataset.key) values[control.dataset.key] = isCheckbox(control) ? control.checked : control.value;
  }
  if (values.reshape === undefined || String(values.reshape).trim() !== "") return values;
  return { ...values, reshape: null };
}

/**
 * Returns a function that calls `action` after `wait` milliseconds without another call.
 * @param {number} wait milliseconds
 * @param {() => void} action
 */
function debounce(wait, action) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}
