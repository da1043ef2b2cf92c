// An answer for people: where its time went, class scores as bars, tensors as tables.

import { el, icon } from "./dom.js";
import { latency, share, threeDigits } from "./format.js";

const TOP = 10;
const ROWS = 50;
const SVG = "http://www.w3.org/2000/svg";

/** `took`: ms in the browser; `labels`: output -> names of its classes. Of the answer's parameters, those that say where its
    time went: queue and compute in microseconds, and for an ensemble those of each step. */
export function answerView(answer, took, labels) {
  return [timeSplit(answer.parameters ?? {}, took), ...answer.outputs.map((output) => outputView(output, labels[output.name]))];
}

export function failureView(message, status) {
  const note = el("div", { class: "note failed", role: "alert" }, icon("failed"), el("p", {}, message));
  return [el("div", { class: "card-body stack tight" }, note, el("p", { class: "hint" }, status ? `The server answered with status ${status}. It keeps serving.` : ""))];
}

function timeSplit(parameters, took) {
  const queue = parameters.slipway_queue_us / 1000;
  const compute = parameters.slipway_compute_us / 1000;
  if (Number.isNaN(queue) || Number.isNaN(compute)) return el("p", { class: "split hint" }, `${latency(took)} from the browser and back.`);
  const rest = Math.max(took - queue - compute, 0);
  const parts = [["queue", queue, "queue"], ["compute", compute, "compute"], ["rest", rest, "network and dashboard"]];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 4");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  let x = 0;
  for (const [name, value] of parts) {
    const width = (value / (queue + compute + rest)) * 100;
    svg.append(rect(x, 0, width, 4, `series-${name}`));
    x += width;
  }
  const keys = parts.map(([name, value, label]) => el("span", { class: "key" }, swatch(`series-${name}`), `${label} ${latency(value)}`));
  return el("div", { class: "split" }, svg, el("div", { class: "row num" }, keys), stepTimes(parameters.slipway_steps));
}

function stepTimes(text) {
  const steps = JSON.parse(text ?? "[]");
  if (!steps.length) return null;
  const time = (microseconds) => el("td", { class: "num" }, latency(microseconds / 1000));
  const rows = steps.map((step) => el("tr", {}, el("th", { scope: "row" }, step.model), time(step.slipway_queue_us), time(step.slipway_compute_us)));
  const head = el("tr", {}, ["Step", "Queue", "Compute"].map((name, index) => el("th", { scope: "col", class: index ? "num" : "" }, name)));
  return el("div", { class: "table-wrap" }, el("table", { class: "steps-table" }, el("thead", {}, head), el("tbody", {}, rows)));
}

function rect(x, y, width, height, className) {
  const box = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, y, width, height })) box.setAttribute(name, value);
  box.setAttribute("class", className);
  return box;
}

function swatch(className) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.append(rect(1, 3, 10, 6, className));
  return svg;
}

function outputView(output, labels) {
  const head = el("h3", {}, el("span", { class: "mono" }, output.name), el("span", { class: "hint mono" }, `${output.datatype} [${output.shape.join(", ")}]`));
  const scores = classScores(output);
  return el("section", { class: "output", "data-output": output.name }, head, scores ? bars(scores, labels) : table(output));
}

/** The scores of one row of classes that add up to 1; null for anything else. */
function classScores({ shape, data, datatype }) {
  const values = [data].flat(Infinity);
  const one = shape.slice(0, -1).every((dim) => dim === 1);
  if (!/^(FP|BF)/.test(datatype) || !one || values.length < 2 || values.length > 5000) return null;
  const sum = values.reduce((total, value) => total + value, 0);
  return values.every((value) => value >= -1e-6 && value <= 1 + 1e-6) && Math.abs(sum - 1) < 0.02 ? values : null;
}

function bars(values, labels) {
  const ranked = values.map((score, index) => ({ score, index })).sort((a, b) => b.score - a.score).slice(0, TOP);
  const rows = ranked.flatMap(({ score, index }, place) => {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 10");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(rect(0, 1, Math.max(score * 100, 0.3), 8, ""));
    const first = place === 0 ? "first" : "rest";
    const name = labels?.[index];
    return [el("span", { class: `${name ? "" : "num "}${first}`, "data-class": index, title: name ? `class ${index}` : null }, name ?? String(index)), el("span", { class: first }, svg), el("span", { class: `num ${first}` }, share(score))];
  });
  return el("div", { class: "top-k", "data-top": ranked[0].index }, rows);
}

function table({ shape, data, datatype }) {
  const values = [data].flat(Infinity);
  const columns = shape.length > 1 ? Math.min(shape.at(-1), 64) : 1;
  const width = shape.length > 1 ? shape.at(-1) : 1;
  const count = Math.min(Math.ceil(values.length / Math.max(width, 1)), ROWS);
  const number = (value) => (typeof value === "number" ? (Number.isInteger(value) ? String(value) : small(value)) : String(value));
  const body = Array.from({ length: count }, (_, row) => el("tr", {}, el("th", { scope: "row", class: "hint num" }, String(row)), Array.from({ length: columns }, (_, column) => el("td", { class: datatype === "BYTES" ? "" : "num" }, values[row * width + column] === undefined ? "" : number(values[row * width + column])))));
  const cut = values.length > count * width ? el("p", { class: "hint" }, `The first ${count} rows of ${values.length} values; all of them are below, as received.`) : null;
  return el("div", {}, el("div", { class: "table-wrap" }, el("table", {}, el("tbody", {}, body))), cut);
}

function small(value) {
  return Math.abs(value) < 0.001 || Math.abs(value) >= 1e6 ? value.toExponential(2) : threeDigits(value);
}
