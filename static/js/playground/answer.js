// The view of an answer for people: its time, the best classes as bars, other tensors as tables.

import { el, icon, svg } from "../core/dom.js";
import { latency, share } from "../core/format.js";
import { handlerView, pictureType, pictureView } from "./handler_answer.js";
import { bestClasses, elementRows, elementText, outputKind } from "./scores.js";

/**
 * @import { HandlerParameters } from "./handler_answer.js"
 * @import { Answer, Output } from "./wire.js"
 */

/**
 * The parameters of an answer with its times, in microseconds.
 * @typedef {object} Timing
 * @property {number} [slipway_queue_us]
 * @property {number} [slipway_compute_us]
 * @property {string} [slipway_steps] only for an ensemble: a JSON list of StepTiming
 *
 * @typedef {{ model: string, slipway_queue_us: number, slipway_compute_us: number }} StepTiming
 */

const TOP = 10;
const TOP_OF_ROW = 3;
const ROWS_MOST = 50;

/**
 * Returns the view of an answer.
 * @param {Answer} answer
 * @param {number} took milliseconds from sending the request until the answer, in the browser
 * @param {(output: string) => string[] | undefined} labels the names of an output's classes
 * @param {(output: string) => void} [name] asks a person for these names
 * @param {boolean} [handler] whether a TorchServe handler answered
 * @returns {HTMLElement[]}
 */
export function answerView(answer, took, labels, name, handler = false) {
  const parameters = /** @type {HandlerParameters} */ (answer.parameters ?? {});
  const outputs = answer.outputs.map((output) =>
    handler && output.datatype === "BYTES" ? handlerView(output, parameters) : outputView(output, labels(output.name), name),
  );
  return [timeSplit(answer.parameters ?? {}, took), ...outputs];
}

/**
 * Returns the milliseconds that the server measured for queue and compute; null if it sent none.
 * @param {Answer} answer
 */
export function serverTime({ parameters = {} }) {
  const { slipway_queue_us: queueUs, slipway_compute_us: computeUs } = /** @type {Timing} */ (parameters);
  return queueUs === undefined || computeUs === undefined ? null : (queueUs + computeUs) / 1000;
}

/**
 * Returns the view of a failed request.
 * @param {string} message
 * @param {number} [status] the HTTP status, if there was an answer
 * @param {string} [log] the page with the log of the model's own code
 * @returns {HTMLElement[]}
 */
export function failureView(message, status, log = "") {
  const note = el("div", { class: "note failed", role: "alert" }, icon("failed"), el("p", {}, message));
  const hint = status ? `The server answered with status ${status}. It keeps serving.` : "";
  const traceback = log && status && status >= 500 ? el("p", {}, "The handler's traceback shows the place of the error: ", el("a", { href: log }, "open the log"), ".") : null;
  return [el("div", { class: "card-body stack tight" }, note, traceback, el("p", { class: "hint" }, hint))];
}

/**
 * @param {Timing} timing
 * @param {number} took milliseconds
 */
function timeSplit({ slipway_queue_us: queueUs, slipway_compute_us: computeUs, slipway_steps: steps }, took) {
  if (queueUs === undefined || computeUs === undefined) {
    return el("p", { class: "split hint" }, `${latency(took)} from the browser and back.`);
  }
  const [queue, compute] = [queueUs / 1000, computeUs / 1000];
  const rest = Math.max(took - queue - compute, 0);
  const parts = [
    { name: "queue", ms: queue, label: "queue" },
    { name: "compute", ms: compute, label: "compute" },
    { name: "rest", ms: rest, label: "network, dashboard and browser" },
  ];
  let x = 0;
  const boxes = parts.map(({ name, ms }) => {
    const width = (ms / (queue + compute + rest)) * 100;
    x += width;
    return rect(x - width, 0, width, 4, `series-${name}`);
  });
  const keys = parts.map(({ name, ms, label }) =>
    el("span", { class: "key" }, swatch(`series-${name}`), `${label} ${latency(ms)}`),
  );
  return el("div", { class: "split" }, stretched(100, 4, ...boxes), el("div", { class: "row num" }, keys), stepTimes(steps));
}

/**
 * Returns a table of an ensemble's steps; null if there are no steps.
 * @param {string} [text]
 */
function stepTimes(text = "[]") {
  /** @type {StepTiming[]} */
  const steps = JSON.parse(text);
  if (!steps.length) return null;
  const head = ["Step", "Queue", "Compute"].map((name, index) => el("th", { scope: "col", class: index ? "num" : "" }, name));
  const rows = steps.map((step) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, step.model),
      el("td", { class: "num" }, latency(step.slipway_queue_us / 1000)),
      el("td", { class: "num" }, latency(step.slipway_compute_us / 1000)),
    ),
  );
  const table = el("table", { class: "steps-table" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
  return el("div", { class: "table-wrap", tabindex: "0" }, table);
}

/**
 * Returns a drawing that stretches to the width of its container.
 * @param {number} width
 * @param {number} height
 * @param {...SVGElement} children
 */
function stretched(width, height, ...children) {
  const attributes = { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  return svg("svg", attributes, ...children);
}

/**
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} className
 */
function rect(x, y, width, height, className) {
  return svg("rect", { x, y, width, height, class: className });
}

/** @param {string} className */
function swatch(className) {
  return svg("svg", { viewBox: "0 0 12 12" }, rect(1, 3, 10, 6, className));
}

/**
 * @param {Output} output
 * @param {string[] | undefined} labels
 * @param {((output: string) => void) | undefined} name
 */
function outputView(output, labels, name) {
  const type = `${output.datatype} [${output.shape.join(", ")}]`;
  const kind = outputKind(output, labels !== undefined);
  const views = {
    shares: () => bars(output, labels, true), ranking: () => bars(output, labels, false), batch: () => batch(output, labels), table: () => table(output, labels),
  };
  const body = el("div", {}, views[kind]());
  const buttons = kind === "table" ? [] : [["Best", kind], ["Table", "table"]].map(([text, which]) =>
    el("button", { type: "button", "aria-pressed": String(which === kind), click: ({ currentTarget }) => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === currentTarget));
      body.replaceChildren(views[/** @type {typeof kind} */ (which)]());
    } }, text),
  );
  const ask = name && (kind !== "table" || /INT/.test(output.datatype))
    ? el("button", { class: "button quiet small", type: "button", click: () => name(output.name) }, icon("tag"), labels ? "Class names" : "Name the classes")
    : null;
  const head = el(
    "div",
    { class: "output-head" },
    el("h3", {}, el("span", { class: "mono" }, output.name), el("span", { class: "hint mono" }, type)),
    ask,
    buttons.length ? el("div", { class: "segmented", role: "group", "aria-label": `How ${output.name} is shown` }, buttons) : null,
  );
  return el("section", { class: "output", "data-output": output.name }, head, body);
}

/**
 * Returns the best classes of the only row as bars. The bar of a share ends at 1. All other bars end at the highest score, and
 * begin at 0, or at the lowest shown score if that is negative.
 * @param {Output} output
 * @param {string[] | undefined} labels
 * @param {boolean} shares
 */
function bars({ data }, labels, shares) {
  const best = bestClasses(data, TOP);
  const [high, low] = [best[0].score, shares ? 0 : Math.min(best.at(-1)?.score ?? 0, 0)];
  const span = shares ? 1 : high - low || 1;
  const rows = best.flatMap(({ score, index }, place) => {
    const rank = place === 0 ? "first" : "rest";
    const name = labels?.[index];
    const label = { class: `${name ? "" : "num "}${rank}`, "data-class": index, title: name ? `class ${index}` : null };
    const width = Number.isFinite(score) ? Math.min(Math.max(((score - low) / span) * 100, 0.3), 100) : 0.3;
    return [
      el("span", label, name ?? String(index)),
      el("span", { class: rank }, stretched(100, 10, rect(0, 1, width, 8, ""))),
      el("span", { class: `num ${rank}` }, shares ? share(score) : elementText(score)),
    ];
  });
  const left = data.length - best.length;
  const hint = left > 0 ? el("p", { class: "hint" }, `The ${best.length} highest of ${data.length}.`) : null;
  return el("div", { class: "stack tight" }, el("div", { class: "top-k", "data-top": best[0].index }, rows), hint);
}

/**
 * Returns the best classes of each row.
 * @param {Output} output
 * @param {string[] | undefined} labels
 */
function batch({ data, shape }, labels) {
  const [count, width] = shape;
  const head = ["Row", "Best", "Second", "Third"].slice(0, 1 + Math.min(TOP_OF_ROW, width));
  const rows = Array.from({ length: Math.min(count, ROWS_MOST) }, (_, row) => {
    const best = bestClasses(data, TOP_OF_ROW, row * width, width);
    const cells = best.map(({ score, index }) =>
      el("td", {}, labels?.[index] ?? `class ${index}`, " ", el("span", { class: "hint num" }, elementText(score))),
    );
    return el("tr", { "data-top": best[0].index }, el("th", { scope: "row", class: "hint num" }, String(row)), cells);
  });
  const note = count > ROWS_MOST ? el("p", { class: "hint" }, `The first ${ROWS_MOST} of ${count} rows.`) : null;
  const columns = el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)));
  return el("div", {}, el("div", { class: "table-wrap", tabindex: "0" }, el("table", {}, el("thead", {}, columns), el("tbody", {}, rows))), note);
}

/**
 * @param {Output} output
 * @param {string[] | undefined} labels names of whole numbers
 */
function table(output, labels) {
  const picture = pictureOf(output);
  if (picture) return picture;
  const { rows, total, cut } = elementRows(output);
  const kind = output.datatype === "BYTES" ? "" : "num";
  const named = labels && /INT/.test(output.datatype) ? labels : undefined;
  const lines = rows.map((cells, row) => {
    const elements = cells.map((cell) => {
      const name = named?.[Number(cell)];
      return el("td", { class: name ? "" : kind, title: name ? `class ${cell}` : null }, name ?? cell);
    });
    return el("tr", {}, el("th", { scope: "row", class: "hint num" }, String(row)), elements);
  });
  const note = total ? `The first ${rows.length} rows and ${rows[0].length} columns of ${total} values; download the answer to have all.` : "";
  const hint = cut ? el("p", { class: "hint" }, note) : null;
  const empty = total ? null : el("p", { class: "hint" }, "No elements.");
  return el("div", {}, el("div", { class: "table-wrap", tabindex: "0" }, el("table", {}, el("tbody", {}, lines))), hint, empty);
}

/**
 * Returns the picture in the only element of BYTES; null if that element is no picture.
 * @param {Output} output
 */
function pictureOf({ name, data }) {
  const [bytes] = data.length === 1 ? [data[0]] : [];
  const type = bytes instanceof Uint8Array ? pictureType(bytes) : "";
  return type ? pictureView(/** @type {Uint8Array} */ (bytes), type, `The picture in ${name}`) : null;
}
