// Turns a view into a drawing for plotly.js: its traces, and the range of values for the axis.

import { KINDS, shownSeries } from "./kinds.js";

/**
 * @import { ChartKind } from "./kinds.js"
 * @import { Batches, Values } from "./series.js"
 */

/**
 * Numbers of requests by latency and time, as the dashboard counted them.
 * @typedef {object} Heatmap
 * @property {number[]} times unix seconds
 * @property {number[]} bounds_ms the bounds of the bands, the lowest first; one more than there are bands
 * @property {number[][]} counts the number of requests in each band, at each time
 */

/**
 * A change of the server or of a model.
 * @typedef {object} Marker
 * @property {number} at unix seconds
 * @property {number} index the index among all markers of the page
 * @property {string} kind
 * @property {string} text
 * @property {string} address the address of the page with its details
 * @property {boolean} bad
 *
 * @typedef {object} Before an earlier span, at times that are moved into the shown one
 * @property {string} label such as "a day before"
 * @property {number[]} times unix seconds
 * @property {Record<string, Values>} series
 *
 * @typedef {object} Outage a span in which the server did not answer and counted nothing
 * @property {number} start unix seconds
 * @property {number} end unix seconds
 */

/**
 * The content of all charts of a page.
 * @typedef {object} View
 * @property {number} start unix seconds
 * @property {number} end unix seconds
 * @property {number[]} times unix seconds
 * @property {Record<string, Values>} series
 * @property {Batches} batches the batches of the range
 * @property {Heatmap} [heatmap] the heatmap of latency, if one is shown
 * @property {Before} [before] the earlier span with which this one is compared
 * @property {Marker[]} markers
 * @property {Outage[]} outages
 *
 * @typedef {object} Drawing
 * @property {object[]} traces the traces for plotly.js; none for an empty chart
 * @property {number} top the highest value
 * @property {number} low the lowest positive value; 0 if there is none
 *
 * @typedef {(name: string) => string} Paint custom property -> its colour, as `rgb(...)`
 */

const FEW_POINTS = 40;

/**
 * Returns the drawing of a chart.
 * @param {string} name the name of its kind
 * @param {View} view
 * @param {Paint} paint
 * @param {ChartKind} [kind] by default the kind with that name
 * @returns {Drawing}
 */
export function drawingOf(name, view, paint, kind = KINDS[name]) {
  if (kind.kind === "distribution") return distribution(view.batches, paint);
  if (name === "latency" && view.heatmap?.counts.length) return heatmapDrawing(view, view.heatmap, paint);
  const shown = shownSeries(kind, view.series);
  const rows = shown.map(([series]) => view.series[series] ?? []);
  const earlier = beforeTraces(kind, view, paint);
  const known = [...rows, ...earlier.map(({ y }) => y)].flat().filter(isKnown);
  const quiet = !known.length || (!kind.zeros && !known.some((value) => value > 0));
  if (quiet) return { traces: [], top: 1, low: 0 };
  const few = rows[0].filter(isKnown).length < FEW_POINTS;
  const traces = shown.flatMap(([, tint, label, dash], index) => {
    const pieces = kind.kind === "area" ? unbroken(view.times, rows[index]) : [{ x: view.times, y: rows[index] }];
    return pieces.map((piece) => trace(kind, piece, paint(tint), label, few, dash));
  });
  const stacked = kind.kind === "stack" || kind.kind === "bars";
  const highest = Math.max(...(stacked ? [...sums(rows), ...earlier.flatMap(({ y }) => y).filter(isKnown)] : known));
  const positive = known.filter((value) => value > 0);
  return { traces: [...traces, ...earlier], top: kind.steadyTop ?? highest, low: positive.length ? Math.min(...positive) : 0 };
}

/**
 * Returns dotted lines for the earlier span.
 * @param {ChartKind} kind
 * @param {View} view
 * @param {Paint} paint
 */
function beforeTraces(kind, { before }, paint) {
  if (!before) return [];
  return (kind.before ?? []).map(([name, tint, label, dash]) =>
    lineTrace({ x: before.times, y: before.series[name] ?? [] }, paint(tint), `${label} ${before.label}`, dash),
  );
}

/**
 * @param {number | null | undefined} value
 * @returns {value is number}
 */
function isKnown(value) {
  return value !== null && value !== undefined;
}

/**
 * Returns the sum of all rows at each time.
 * @param {Values[]} rows
 */
function sums(rows) {
  return rows[0].map((_, index) => rows.reduce((sum, row) => sum + (row[index] ?? 0), 0));
}

/**
 * Returns the pieces of a row between its gaps, because plotly.js would fill an area across them.
 * @param {number[]} times
 * @param {Values} row
 * @returns {{ x: number[], y: number[] }[]}
 */
export function unbroken(times, row) {
  /** @type {{ x: number[], y: number[] }[]} */
  const pieces = [];
  let open = false;
  row.forEach((value, index) => {
    if (!isKnown(value)) {
      open = false;
      return;
    }
    if (!open) pieces.push({ x: [], y: [] });
    open = true;
    pieces[pieces.length - 1].x.push(times[index]);
    pieces[pieces.length - 1].y.push(value);
  });
  return pieces;
}

/**
 * @param {ChartKind} kind
 * @param {{ x: number[], y: Values }} points
 * @param {string} colour
 * @param {string} name
 * @param {boolean} few whether to mark single points, because a line of few points may be invisible
 * @param {"dot"} [dash]
 */
function trace({ kind, unmarked }, { x, y }, colour, name, few, dash) {
  if (kind === "bars") return { x, y, name, type: "bar", hoverinfo: "none", marker: { color: colour } };
  const line = lineTrace({ x, y }, colour, name, dash);
  if (kind === "stack") {
    return { ...line, stackgroup: "time", fillcolor: faded(colour, 0.45), line: { color: colour, width: 1 } };
  }
  const mode = few && !unmarked ? "lines+markers" : "lines";
  return kind === "area" ? { ...line, mode, fill: "tozeroy", fillcolor: faded(colour, 0.14) } : { ...line, mode };
}

/**
 * @param {{ x: number[], y: Values }} points
 * @param {string} colour
 * @param {string} name
 * @param {"dot"} [dash]
 */
function lineTrace({ x, y }, colour, name, dash) {
  const line = { color: colour, width: 1.6, shape: "linear", ...(dash && { dash }) };
  const marker = { size: 4, color: colour };
  return { x, y, name, hoverinfo: "none", type: "scatter", mode: "lines", connectgaps: false, marker, line };
}

/**
 * @param {Batches} batches
 * @param {Paint} paint
 * @returns {Drawing}
 */
function distribution(batches, paint) {
  const [sizes, counts] = [Object.keys(batches), Object.values(batches)]; // whole numbers are in their order
  if (!sizes.length) return { traces: [], top: 1, low: 0 };
  const bars = { x: sizes, y: counts, type: "bar", hoverinfo: "none", marker: { color: paint("series-2") } };
  return { traces: [bars], top: Math.max(...counts), low: 0 };
}

/**
 * Draws the logarithm of counts as colours, so that a band with few requests is visible next to a band with many.
 * @param {View} view
 * @param {Heatmap} heatmap
 * @param {Paint} paint
 * @returns {Drawing}
 */
function heatmapDrawing({ times, series }, { times: x, bounds_ms: bounds, counts }, paint) {
  const [pale, strong] = [paint("series-2"), paint("series-3")];
  const colorscale = [[0, faded(pale, 0)], [0.02, faded(pale, 0.18)], [1, strong]];
  const low = Math.max(bounds[0], 0.01); // the axis is logarithmic
  const y = bounds.map((bound) => Math.max(bound, low));
  const z = counts.map((row) => row.map(Math.log1p));
  const cells = { type: "heatmap", x, y, z, colorscale, showscale: false, hoverinfo: "none", zsmooth: false };
  const p99 = lineTrace({ x: times, y: series.p99 ?? [] }, paint("series-queue"), "p99");
  return { traces: [cells, p99], top: y[y.length - 1], low: y[0] };
}

/**
 * Returns a colour with less opacity.
 * @param {string} rgb
 * @param {number} alpha
 */
function faded(rgb, alpha) {
  return `rgba(${(rgb.match(/[\d.]+/g) ?? []).slice(0, 3).join(",")},${alpha})`;
}
