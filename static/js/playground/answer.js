// An answer for people: where its time went, class scores as bars, other tensors as tables.

import { el, icon, svg } from "../core/dom.js";
import { latency, share } from "../core/format.js";
import { bestClasses, classScores, elementRows } from "./scores.js";

/**
 * @import { Output } from "./scores.js"
 */

/**
 * Of an answer's parameters, those that say where its time went, in microseconds.
 * @typedef {object} Timing
 * @property {number} [slipway_queue_us]
 * @property {number} [slipway_compute_us]
 * @property {string} [slipway_steps] of an ensemble: a JSON list of StepTiming
 *
 * @typedef {{ model: string, slipway_queue_us: number, slipway_compute_us: number }} StepTiming
 *
 * @typedef {{ outputs: Output[], parameters?: Timing }} Answer
 */

const TOP = 10;

/**
 * Returns what a page shows of an answer.
 * @param {Answer} answer
 * @param {number} took milliseconds from the browser and back
 * @param {Record<string, string[]>} labels output -> names of its classes
 * @returns {HTMLElement[]}
 */
export function answerView(answer, took, labels) {
  const outputs = answer.outputs.map((output) => outputView(output, labels[output.name]));
  return [timeSplit(answer.parameters ?? {}, took), ...outputs];
}

/**
 * Returns what a page shows of a request that failed.
 * @param {string} message
 * @param {number} [status] the HTTP status; left out where nobody answered
 * @returns {HTMLElement[]}
 */
export function failureView(message, status) {
  const note = el("div", { class: "note failed", role: "alert" }, icon("failed"), el("p", {}, message));
  const hint = status ? `The server answered with status ${status}. It keeps serving.` : "";
  return [el("div", { class: "card-body stack tight" }, note, el("p", { class: "hint" }, hint))];
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
    { name: "rest", ms: rest, label: "network and dashboard" },
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
 * Returns a table of an ensemble's steps; null where there is none.
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
  return el("div", { class: "table-wrap" }, table);
}

/**
 * Returns a drawing that is stretched to the width of its place.
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
 */
function outputView(output, labels) {
  const type = `${output.datatype} [${output.shape.join(", ")}]`;
  const head = el("h3", {}, el("span", { class: "mono" }, output.name), el("span", { class: "hint mono" }, type));
  const scores = classScores(output);
  const view = scores ? bars(scores, labels) : table(output);
  return el("section", { class: "output", "data-output": output.name }, head, view);
}

/**
 * @param {number[]} scores
 * @param {string[] | undefined} labels
 */
function bars(scores, labels) {
  const best = bestClasses(scores, TOP);
  const rows = best.flatMap(({ score, index }, place) => {
    const rank = place === 0 ? "first" : "rest";
    const name = labels?.[index];
    const label = { class: `${name ? "" : "num "}${rank}`, "data-class": index, title: name ? `class ${index}` : null };
    return [
      el("span", label, name ?? String(index)),
      el("span", { class: rank }, stretched(100, 10, rect(0, 1, Math.max(score * 100, 0.3), 8, ""))),
      el("span", { class: `num ${rank}` }, share(score)),
    ];
  });
  return el("div", { class: "top-k", "data-top": best[0].index }, rows);
}

/** @param {Output} output */
function table(output) {
  const { rows, total, cut } = elementRows(output);
  const kind = output.datatype === "BYTES" ? "" : "num";
  const lines = rows.map((cells, row) => {
    const elements = cells.map((cell) => el("td", { class: kind }, cell));
    return el("tr", {}, el("th", { scope: "row", class: "hint num" }, String(row)), elements);
  });
  const note = `The first ${rows.length} rows of ${total} values; all of them are below, as received.`;
  const hint = cut ? el("p", { class: "hint" }, note) : null;
  return el("div", {}, el("div", { class: "table-wrap" }, el("table", {}, el("tbody", {}, lines))), hint);
}
