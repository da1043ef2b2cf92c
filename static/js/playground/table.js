// A tensor as a table of fields, which a person types, pastes from a spreadsheet, or reads from a file of rows.

import { el, icon } from "../core/dom.js";
import { messageOf } from "../core/request.js";
import { inWidth, parseRows, withoutHeader } from "./rows.js";
import { parseElement } from "./tensors.js";

/**
 * @typedef {import("./datatypes.js").Element} Element
 *
 * @typedef {object} TableOptions
 * @property {string} name the name of the tensor
 * @property {string} datatype
 * @property {number[]} shape one or two dimensions; -1 for a variable dimension
 * @property {number} rowsMost the most rows of a request, if the number of rows is variable; 0 for any number
 * @property {() => void} onChange
 * @property {(text: string) => void} fail shows an error next to the input
 */

const FIELDS_MOST = 1500; // the most fields on a page; further rows are sent without being shown

export class TableControl {
  /** @param {TableOptions} options */
  constructor({ name, datatype, shape, rowsMost, onChange, fail }) {
    this.name = name;
    this.datatype = datatype;
    this.onChange = onChange;
    this.fail = fail;
    // A list of variable length has a row for each element. A list of fixed length is one row.
    this.list = shape.length === 1;
    const [rows, width] = this.list ? (shape[0] < 0 ? [-1, 1] : [1, shape[0]]) : shape;
    this.openRows = rows < 0;
    this.rowsMost = !this.openRows ? Math.abs(rows) : rowsMost || Infinity;
    this.openWidth = width < 0;
    this.width = Math.abs(width);
    this.blank = datatype === "BYTES" ? "" : "0";
    /** @type {string[][]} */
    this.rows = Array.from({ length: Math.abs(rows) }, () => this.#blankRow());
    this.table = el("table", { class: "tensor-table" });
    this.note = el("span", { class: "hint num", role: "status" });
    this.element = el("div", { class: "stack tight" }, el("div", { class: "table-wrap tensor-wrap" }, this.table), this.#tools());
    this.table.addEventListener("input", ({ target }) => this.#typed(target));
    this.table.addEventListener("paste", (event) => this.#pasted(event));
    this.#show();
  }

  /** Returns the tensor. Throws an Error that names the first wrong field. */
  read() {
    /** @type {Element[]} */
    const data = [];
    this.rows.forEach((row, at) => {
      row.forEach((cell, column) => {
        try {
          data.push(parseElement(cell, this.datatype));
        } catch (error) {
          this.#field(at, column)?.setAttribute("aria-invalid", "true");
          const place = this.rows.length > 1 ? `Row ${at + 1}, column ${column}` : `Column ${column}`;
          throw new Error(`${place}: ${messageOf(error)}`);
        }
      });
    });
    return { shape: this.list ? [data.length] : [this.rows.length, this.width], data };
  }

  /**
   * Shows the elements of a tensor. Returns whether they fit into the table.
   * @param {number[]} shape
   * @param {ArrayLike<Element>} data
   */
  put(shape, data) {
    const width = this.list ? this.width : shape[1];
    const count = data.length / width;
    if ((width !== this.width && !this.openWidth) || !Number.isInteger(count) || (count !== this.rows.length && !this.openRows)) {
      return false;
    }
    const cells = Array.from(data, String);
    this.#lay(Array.from({ length: count }, (_, row) => cells.slice(row * width, (row + 1) * width)));
    return true;
  }

  #tools() {
    const file = el("input", { type: "file", accept: ".csv,.tsv,.txt,text/csv", class: "sr-only", tabindex: "-1", "aria-hidden": "true" });
    file.addEventListener("change", async () => {
      const chosen = file.files?.[0];
      if (chosen) this.#take(await chosen.text(), 0, 0);
      file.value = "";
    });
    const add = el("button", { class: "button small", type: "button", click: () => this.#add() }, icon("plus"), "Add row");
    const wider = el("button", { class: "button small", type: "button", click: () => this.#widen() }, icon("plus"), "Add column");
    const choose = el("button", { class: "button small", type: "button", click: () => file.click() }, "Choose a CSV file");
    return el(
      "div",
      { class: "row" },
      this.openRows ? add : null,
      this.openWidth ? wider : null,
      choose,
      file,
      el("span", { class: "hint" }, "or paste rows from a spreadsheet into any field"),
      this.note,
    );
  }

  /** @param {EventTarget | null} target */
  #typed(target) {
    if (!(target instanceof HTMLInputElement)) return;
    const { row, column } = target.dataset;
    this.rows[Number(row)][Number(column)] = target.value;
    target.removeAttribute("aria-invalid");
    this.onChange();
  }

  /** @param {ClipboardEvent} event */
  #pasted(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const { target } = event;
    if (!(target instanceof HTMLInputElement) || !this.#manyCells(text)) return;
    event.preventDefault();
    this.#take(text, Number(target.dataset.row), Number(target.dataset.column));
  }

  /**
   * Returns whether a text has several cells. A single comma may be a decimal comma, or part of a sentence.
   * @param {string} text
   */
  #manyCells(text) {
    if (/[\t\n]/.test(text.trim())) return true;
    if (this.datatype === "BYTES") return false;
    const [row] = parseRows(text);
    return row !== undefined && row.length > 1 && (row.length > 2 || !/^\s*-?\d+,\d+\s*$/.test(text));
  }

  /**
   * Puts the rows of a text into the table, starting at a field.
   * @param {string} text
   * @param {number} row
   * @param {number} column
   */
  #take(text, row, column) {
    const { rows: given, header } = this.datatype === "BYTES" ? { rows: parseRows(text), header: false } : withoutHeader(parseRows(text));
    if (!given.length) return;
    try {
      const whole = column === 0 && given.every((one) => one.length === given[0].length);
      const width = this.openWidth && whole ? given[0].length : this.width;
      const part = given.every((one) => column + one.length <= width) && (given.length === 1 || column > 0);
      const laid = part ? given : inWidth(given, width, this.name);
      this.#refuseMore(row + laid.length);
      if (width !== this.width) this.rows = row ? this.rows.map((one) => resized(one, width, this.blank)) : [];
      this.width = width;
      const rows = this.rows.map((one) => [...one]);
      while (rows.length < row + laid.length) rows.push(this.#blankRow());
      laid.forEach((cells, index) => rows[row + index].splice(part ? column : 0, cells.length, ...cells));
      // A whole table that is pasted into the first field replaces all rows.
      this.#lay(row === 0 && column === 0 && !part && this.openRows ? rows.slice(0, laid.length) : rows);
      this.note.textContent = header ? `${this.note.textContent}; a first row of names was left out` : this.note.textContent;
    } catch (error) {
      this.fail(messageOf(error));
    }
    this.#field(row, column)?.focus();
  }

  /** @param {number} count the number of rows */
  #refuseMore(count) {
    if (count > this.rowsMost) throw new Error(`${count} rows are more than one request may have: ${this.name} takes at most ${this.rowsMost}.`);
  }

  #add() {
    try {
      this.#refuseMore(this.rows.length + 1);
    } catch (error) {
      this.fail(messageOf(error));
      return;
    }
    this.#lay([...this.rows, this.#blankRow()]);
    this.#field(this.rows.length - 1, 0)?.select();
  }

  #widen() {
    this.width += 1;
    this.#lay(this.rows.map((row) => resized(row, this.width, this.blank)));
    this.#field(0, this.width - 1)?.select();
  }

  /** @param {number} row */
  #remove(row) {
    this.#lay(this.rows.filter((_, at) => at !== row));
    this.#field(Math.min(row, this.rows.length - 1), 0)?.focus();
  }

  /** @param {string[][]} rows */
  #lay(rows) {
    this.rows = rows;
    this.width = rows[0]?.length ?? this.width;
    this.#show();
    this.onChange();
  }

  #blankRow() {
    return Array(this.width).fill(this.blank);
  }

  #show() {
    const most = Math.max(Math.floor(FIELDS_MOST / this.width), 1);
    const shown = this.rows.slice(0, most);
    const names = Array.from({ length: this.width }, (_, column) => el("th", { scope: "col", class: "num hint" }, String(column)));
    const head = this.width > 1 ? el("thead", {}, el("tr", {}, el("td"), names, this.openRows ? el("td") : null)) : null;
    this.table.replaceChildren(...(head ? [head] : []), el("tbody", {}, shown.map((row, at) => this.#row(row, at))));
    const hidden = this.rows.length - shown.length;
    const count = `${this.rows.length} row${this.rows.length === 1 ? "" : "s"}`;
    const bound = Number.isFinite(this.rowsMost) ? ` of at most ${this.rowsMost}` : "";
    this.note.textContent = hidden > 0 ? `${count}, of which the last ${hidden} are sent and not shown` : this.openRows ? count + bound : "";
  }

  /**
   * @param {string[]} cells
   * @param {number} row
   */
  #row(cells, row) {
    const fields = cells.map((value, column) =>
      el("td", {}, el("input", {
        type: "text", value, inputmode: this.datatype === "BYTES" ? "text" : "decimal", autocomplete: "off", spellcheck: "false",
        "aria-label": row ? `${this.name} row ${row + 1}, ${column}` : `${this.name} ${column}`, "data-row": row, "data-column": column,
      })),
    );
    const attributes = { class: "button quiet small icon-only", type: "button", "aria-label": `Remove row ${row + 1}` };
    const away = el("button", { ...attributes, click: () => this.#remove(row) }, icon("close"));
    const last = this.openRows ? el("td", {}, this.rows.length > 1 ? away : null) : null;
    return el("tr", {}, el("th", { scope: "row", class: "num hint" }, String(row + 1)), fields, last);
  }

  /**
   * @param {number} row
   * @param {number} column
   * @returns {HTMLInputElement | null}
   */
  #field(row, column) {
    return this.table.querySelector(`[data-row="${row}"][data-column="${column}"]`);
  }
}

/**
 * @param {string[]} row
 * @param {number} width
 * @param {string} blank
 */
function resized(row, width, blank) {
  return Array.from({ length: width }, (_, column) => row[column] ?? blank);
}
