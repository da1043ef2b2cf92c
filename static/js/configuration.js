// The configuration as form and as text, each following the other through the server, which knows what is valid.

import { $, $$, data, debounce, el, request } from "./dom.js";

const DELAY = 300;
const LISTS = ["instance_groups", "inputs", "outputs"];

export class Editor {
  /** `onPreview(preview)`: after each answer of the server; `preview` says what the present text is and would do. */
  constructor(root, onPreview = () => {}) {
    this.root = root;
    this.form = $("#config-form", root);
    this.text = $("#config-text", root);
    this.gutter = $("#config-gutter", root);
    this.original = { text: this.text.defaultValue, fields: data("config-fields") };
    this.base = this.original.text;
    this.baseFields = this.original.fields;
    this.onPreview = onPreview;
    const fromForm = debounce(DELAY, () => this.preview({ base: this.base, fields: this.edited() }, "form"));
    const fromText = debounce(DELAY, () => this.preview({ text: this.text.value }, "text"));
    this.form.addEventListener("input", () => {
      this.asked = null; // an answer to what stood there before would undo what is typed
      this.showDependent();
      fromForm();
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("click", (event) => this.editRows(event, fromForm));
    this.text.addEventListener("input", () => {
      this.asked = null;
      this.base = this.text.value;
      this.drawGutter();
      fromText();
    });
    this.text.addEventListener("scroll", () => (this.gutter.scrollTop = this.text.scrollTop));
    this.text.addEventListener("keydown", (event) => this.indent(event));
    this.problems = [];
    this.showDependent();
    this.drawGutter();
    if (this.text.value) this.preview({ text: this.text.value }, "text");
  }

  // -- the form ------------------------------------------------------------------------------------------------------

  fields() {
    const fields = {};
    for (const control of this.form.elements) {
      if (!control.name) continue;
      fields[control.name] = control.type === "checkbox" ? control.checked : control.value;
    }
    for (const list of LISTS) fields[list] = $$(`[data-rows="${list}"] > [data-item]`, this.form).map(rowValues);
    return fields;
  }

  /** Only what differs from the text that it is laid over, so that the rest of the text stays as it was written. */
  edited() {
    return Object.fromEntries(Object.entries(this.fields()).filter(([name, value]) => !same(value, this.baseFields[name])));
  }

  /** Puts the server's fields into the form; a control that has the focus keeps what is being typed. */
  fill(fields) {
    for (const control of this.form.elements) {
      if (!control.name || !(control.name in fields) || control === document.activeElement) continue;
      if (control.type === "checkbox") control.checked = fields[control.name];
      else control.value = shown(fields[control.name]);
    }
    for (const list of LISTS) this.fillRows(list, fields[list] ?? []);
    this.showDependent();
  }

  fillRows(list, items) {
    const box = $(`[data-rows="${list}"]`, this.form);
    while (box.children.length > items.length) box.lastElementChild.remove();
    while (box.children.length < items.length) box.append(this.newRow(list));
    items.forEach((item, index) => {
      for (const control of $$("[data-key]", box.children[index])) {
        if (control !== document.activeElement) control.value = shown(item[control.dataset.key]);
      }
    });
    $(`[data-empty-for="${list}"]`, this.form).hidden = items.length > 0;
  }

  newRow(list) {
    return $(`#row-${list}`, this.root).content.firstElementChild.cloneNode(true);
  }

  editRows(event, changed) {
    const add = event.target.closest("[data-add]");
    const remove = event.target.closest("[data-remove]");
    if (!add && !remove) return;
    if (add) {
      const row = this.newRow(add.dataset.add);
      $(`[data-rows="${add.dataset.add}"]`, this.form).append(row);
      $(`[data-empty-for="${add.dataset.add}"]`, this.form).hidden = true;
      $("input, select", row).focus();
    } else remove.closest("[data-item]").remove();
    this.asked = null;
    changed();
  }

  /** Parts that only matter with another choice are shown with it. */
  showDependent() {
    for (const part of $$("[data-when]", this.form)) {
      const [name, value] = part.dataset.when.split("=");
      const control = this.form.elements[name];
      part.hidden = value === undefined ? !control.checked : control.value !== value;
    }
  }

  // -- the text ------------------------------------------------------------------------------------------------------

  drawGutter() {
    const lines = this.text.value.split("\n");
    const before = new Set(this.original.text.split("\n"));
    const bad = new Set(this.problems.filter(({ severity, line }) => severity === "error" && line).map(({ line }) => line));
    this.gutter.replaceChildren(...lines.map((line, index) => {
      const marks = [bad.has(index + 1) && "bad", !before.has(line) && line.trim() && "changed-line"].filter(Boolean).join(" ");
      return el("span", { class: marks || null }, String(index + 1));
    }));
    this.gutter.append(el("span", {}, " "), el("span", {}, " "));
    this.gutter.scrollTop = this.text.scrollTop;
  }

  indent(event) {
    // Tab leaves the field, as everywhere; Enter keeps the indentation.
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    const start = this.text.value.lastIndexOf("\n", this.text.selectionStart - 1) + 1;
    const spaces = this.text.value.slice(start, this.text.selectionStart).match(/^\s*/)[0];
    const deeper = /[{[]\s*$/.test(this.text.value.slice(start, this.text.selectionStart)) ? "  " : "";
    if (!spaces && !deeper) return;
    event.preventDefault();
    this.text.setRangeText(`\n${spaces}${deeper}`, this.text.selectionStart, this.text.selectionEnd, "end");
    this.text.dispatchEvent(new Event("input", { bubbles: true }));
  }

  goTo(line) {
    const lines = this.text.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.text.focus();
    this.text.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    this.text.scrollTop = Math.max(0, (line - 6) * (this.text.scrollHeight / (lines.length + 1)));
  }

  // -- the server's answer -------------------------------------------------------------------------------------------

  async preview(body, from) {
    const asked = (this.asked = Symbol("preview"));
    this.say("checking");
    let preview;
    try {
      preview = await request(this.root.dataset.preview, { method: "POST", json: body });
    } catch (error) {
      if (asked === this.asked) this.say(error.message);
      return;
    }
    if (asked !== this.asked) return;
    this.problems = preview.problems;
    if (from === "form") {
      this.text.value = preview.text;
      // While the form cannot be understood it is laid over the last text that could.
      if (preview.valid) [this.base, this.baseFields] = [preview.text, preview.fields];
    } else {
      if (Object.keys(preview.fields).length) {
        this.fill(preview.fields);
        this.baseFields = preview.fields;
      }
      this.base = this.text.value;
    }
    this.drawGutter();
    this.showProblems();
    this.markChanges();
    this.onPreview(preview);
  }

  say(text) {
    $("#config-status", this.root).textContent = text;
  }

  showProblems() {
    const errors = this.problems.filter(({ severity }) => severity === "error").length;
    this.say(errors ? `${errors} error${errors > 1 ? "s" : ""}` : "valid");
    $("#config-problems", this.root).replaceChildren(...this.problems.map((problem) => {
      const place = problem.line ? `Line ${problem.line}: ` : "";
      return el("li", { class: problem.severity }, el("button", { type: "button", click: () => problem.line && this.goTo(problem.line) }, `${place}${problem.message}`));
    }));
    for (const part of $$("[data-field]", this.form)) this.showFieldError(part);
  }

  showFieldError(part) {
    const name = part.dataset.field;
    const own = this.problems.find(({ field, severity }) => severity === "error" && field && field.replace(/[.[].*$/, "") === name);
    const line = $("[data-error]", part);
    if (line) {
      line.hidden = !own;
      line.textContent = own?.message ?? "";
    }
    const control = $("input, select", part);
    if (LISTS.includes(name) || !control) return;
    if (own) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }

  markChanges() {
    const now = this.fields();
    for (const part of $$("[data-field]", this.form)) {
      const name = part.dataset.field;
      const changed = !same(now[name], this.original.fields[name]);
      if (LISTS.includes(name)) $("h2", part).parentElement.classList.toggle("changed-head", changed);
      else part.classList.toggle("changed", changed);
    }
  }

  get changed() {
    return this.text.value !== this.original.text;
  }

  reset() {
    this.text.value = this.original.text;
    this.drawGutter();
    return this.preview({ text: this.original.text }, "text");
  }
}

function rowValues(row) {
  const values = Object.fromEntries($$("[data-key]", row).map((control) => [control.dataset.key, control.value]));
  if ("reshape" in values && values.reshape.trim() === "") values.reshape = null;
  return values;
}

function shown(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

function plain(value) {
  if (Array.isArray(value)) return value.some((item) => typeof item === "object" && item !== null) ? value.map(plain) : value.join(",");
  if (typeof value === "object" && value !== null) return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, plain(part)]).filter(([, part]) => part !== "" && part !== "false"));
  if (value === null || value === undefined) return "";
  return String(value).replace(/\s+/g, "");
}

function same(left, right) {
  return JSON.stringify(sorted(plain(left))) === JSON.stringify(sorted(plain(right)));
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  return typeof value === "object" && value !== null ? Object.entries(value).sort() : value;
}

export function startEditor(onPreview) {
  const root = $("#config");
  if (!root || root.dataset.started) return null;
  root.dataset.started = "yes";
  return new Editor(root, onPreview);
}
