// One chart: a plotly.js plot in our colours and units, its legend with the values under the crosshair, its states.

import { $, el, icon } from "./dom.js";
import { count, latency, rate, share, size, threeDigits } from "./format.js";
import { logTicks, momentText, steadyBound, timeTicks, valueTicks } from "./axes.js";

const cores = (value) => (value === null ? "–" : `${threeDigits(value)} cores`);

// What each chart shows: [series, colour, label]; `kind` is how; `unit` writes its values. `gaps`: a second in which nothing
// happened has no value, rather than 0. `process`: of the server's process, not of its models.
const KINDS = {
  latency: { kind: "lines", unit: latency, series: [["p50", "series-1", "p50"], ["p95", "series-2", "p95"], ["p99", "series-3", "p99"]], log: true, gaps: true, empty: "No requests in this range" },
  throughput: { kind: "area", unit: rate, series: [["rps", "series-2", "requests"]], empty: "No requests in this range" },
  errors: { kind: "bars", unit: rate, series: [["failed_model", "failed", "model failed"], ["failed_rejected", "series-queue", "refused"], ["failed_other", "series-3", "other"], ["cancelled", "line-strong", "client left"]], empty: "No failures in this range" },
  phases: { kind: "stack", unit: latency, series: [["queue_ms", "series-queue", "queue"], ["compute_ms", "series-compute", "compute"]], gaps: true, empty: "No requests in this range" },
  pending: { kind: "area", unit: count, series: [["pending", "series-2", "pending"]], empty: "Nothing waited in this range" },
  cache: { kind: "lines", unit: share, series: [["cache_share", "series-2", "answered from the cache"]], steadyTop: 1, gaps: true, empty: "No requests asked the cache in this range" },
  memory: { kind: "area", unit: size, series: [["rss", "series-2", "resident"]], binary: true, process: true, empty: "No measurements in this range" },
  cpu: { kind: "area", unit: cores, series: [["cpu", "series-2", "in use"]], process: true, empty: "No measurements in this range" },
  gpu: { kind: "lines", unit: share, series: [["gpu", "series-2", "utilisation"], ["gpu_memory", "series-queue", "memory"]], process: true, empty: "No GPU on this server", steadyTop: 1 },
  batches: { kind: "distribution", unit: count, series: [["batches", "series-2", "executions"]], empty: "No batches in this range" },
};
const LISTED = Object.values(KINDS).filter(({ kind }) => kind !== "distribution");
const named = (kinds) => kinds.flatMap(({ series, gaps }) => series.map(([name]) => [name, gaps ? null : 0]));
// Series of models -> what a second without any request has; those of the process.
export const MODEL_SERIES = new Map(named(LISTED.filter(({ process }) => !process)));
export const PROCESS_SERIES = named(LISTED.filter(({ process }) => process)).map(([name]) => name);
const FEW_POINTS = 40;
const LOG_SPREAD = 20;

/** A custom property's colour as the browser computes it in the present theme. */
function colour(name) {
  const probe = document.body.appendChild(el("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function faded(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g).slice(0, 3);
  return `rgba(${parts.join(",")},${alpha})`;
}

export class Plot {
  constructor(figure, { onZoom, onZoomOut, onPointer, onMarker }) {
    this.figure = figure;
    this.name = figure.dataset.chart;
    this.kind = KINDS[this.name];
    this.box = $("[data-plot]", figure);
    this.legend = $("[data-legend]", figure);
    this.line = el("div", { class: "crosshair", hidden: true });
    this.handlers = { onZoom, onZoomOut, onPointer, onMarker };
    this.visible = true;
    new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      if (this.visible && this.late) this.draw(this.late);
    }).observe(figure);
    new ResizeObserver(() => this.drawn && this.last && this.draw(this.last)).observe(this.box);
  }

  /** Draws `view`: {start, end, times, series, batches, heatmap, markers}. Nothing is done while it is out of sight. */
  draw(view) {
    this.last = view;
    if (!this.visible) {
      this.late = view;
      return;
    }
    this.late = null;
    const { traces, top, low } = this.traces(view);
    if (!traces.length && this.name === "gpu") {
      this.note(this.kind.empty, "info");
      return;
    }
    this.clearNote();
    const layout = this.layout(view, top, low, traces);
    Plotly.react(this.box, traces, layout, { displayModeBar: false, doubleClick: false, showTips: false });
    if (!this.drawn) this.listen();
    this.drawn = true;
    if (this.hovering === undefined) this.showValues(null);
    this.showEmpty(traces.length === 0);
  }

  traces(view) {
    if (this.kind.kind === "distribution") return this.distribution(view);
    if (this.name === "latency" && view.heatmap?.counts.length) return this.heatmap(view);
    const rows = this.kind.series.map(([name]) => view.series[name] ?? []);
    const known = rows.flat().filter((value) => value !== null && value !== undefined);
    const quiet = !known.length || (this.name !== "memory" && !known.some((value) => value > 0));
    if (quiet) return { traces: [], top: 1 };
    const few = rows[0].filter((value) => value !== null && value !== undefined).length < FEW_POINTS;
    const traces = this.kind.series.flatMap(([, tint, label], index) => this.pieces(view.times, rows[index]).map(([x, y]) => this.trace(x, y, colour(tint), label, few)));
    const stacked = ["stack", "bars"].includes(this.kind.kind);
    const highest = Math.max(...(stacked ? rows[0].map((_, index) => rows.reduce((sum, row) => sum + (row[index] ?? 0), 0)) : known));
    const positive = known.filter((value) => value > 0);
    return { traces, top: this.kind.steadyTop ?? highest, low: Math.min(...positive) };
  }

  /** An area is drawn in pieces: plotly.js would fill across the gaps where nobody watched. */
  pieces(times, row) {
    if (this.kind.kind !== "area") return [[times, row]];
    const pieces = [];
    let open = null;
    row.forEach((value, index) => {
      if (value === null || value === undefined) open = null;
      else {
        if (!open) pieces.push((open = [[], []]));
        open[0].push(times[index]);
        open[1].push(value);
      }
    });
    return pieces;
  }

  trace(x, y, tint, name, few) {
    const base = { x, y, name, hoverinfo: "none", type: "scatter", mode: few ? "lines+markers" : "lines", connectgaps: false, marker: { size: 4, color: tint }, line: { color: tint, width: 1.6, shape: "linear" } };
    if (this.kind.kind === "bars") return { x, y, name, type: "bar", hoverinfo: "none", marker: { color: tint } };
    if (this.kind.kind === "area") return { ...base, fill: "tozeroy", fillcolor: faded(tint, 0.14), mode: few && this.name === "throughput" ? "lines" : base.mode };
    if (this.kind.kind === "stack") return { ...base, stackgroup: "time", fillcolor: faded(tint, 0.45), mode: "lines", line: { color: tint, width: 1 } };
    return base;
  }

  distribution({ batches }) {
    const sizes = Object.keys(batches ?? {}).map(Number).sort((a, b) => a - b);
    const counts = sizes.map((batch) => batches[batch]);
    if (!sizes.length) return { traces: [], top: 1 };
    const trace = { x: sizes.map(String), y: counts, type: "bar", hoverinfo: "none", marker: { color: colour("series-2") } };
    return { traces: [trace], top: Math.max(...counts) };
  }

  heatmap({ times, heatmap, series }) {
    const scale = [[0, faded(colour("series-2"), 0)], [0.02, faded(colour("series-2"), 0.18)], [1, colour("series-3")]];
    const low = Math.max(heatmap.bounds_ms[0], 0.01);
    const y = heatmap.bounds_ms.map((bound) => Math.max(bound, low));
    const z = heatmap.counts.map((row) => row.map((value) => (value ? Math.log1p(value) : 0)));
    const trace = { type: "heatmap", x: heatmap.times, y, z, colorscale: scale, showscale: false, hoverinfo: "none", zsmooth: false };
    const line = this.trace(times, series.p99 ?? [], colour("series-queue"), "p99", false);
    return { traces: [trace, line], top: y.at(-1), low: y[0] };
  }

  layout(view, top, low, traces) {
    const ink = colour("ink-3");
    const font = { family: getComputedStyle(document.body).fontFamily, size: 11, color: ink };
    const grid = colour("grid");
    return {
      autosize: true,
      margin: { l: this.box.clientWidth < 480 ? 52 : 64, r: 8, t: 6, b: 22 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font,
      showlegend: false,
      hovermode: false,
      dragmode: this.kind.kind === "distribution" ? false : "zoom",
      barmode: "stack",
      bargap: this.kind.kind === "distribution" ? 0.35 : 0.1,
      xaxis: this.timeAxis(view, grid),
      yaxis: this.valueAxis(top, low, grid, traces),
      shapes: this.kind.kind === "distribution" ? [] : view.markers.map((marker) => this.markerLine(marker)),
      annotations: this.name === "latency" || this.name === "throughput" ? view.markers.map((marker) => this.markerSign(marker)) : [],
      uirevision: "steady",
    };
  }

  timeAxis(view, grid) {
    if (this.kind.kind === "distribution") return { type: "category", fixedrange: true, showgrid: false, linecolor: grid, tickfont: { size: 11 } };
    const { values, texts } = timeTicks(view.start, view.end, Math.max(3, Math.min(9, Math.floor(this.box.clientWidth / 95))));
    return { type: "linear", range: [view.start, view.end], tickvals: values, ticktext: texts, showgrid: false, zeroline: false, linecolor: grid, showline: true, ticks: "outside", tickcolor: grid, ticklen: 4, fixedrange: false, uirevision: `${view.start}` };
  }

  valueAxis(top, low, grid, traces) {
    const axis = { fixedrange: true, gridcolor: grid, zeroline: false, automargin: false };
    if (!traces.length) return { ...axis, type: "linear", range: [0, 1], tickvals: [], showgrid: false };
    if (this.kind.log && traces.length && low > 0 && top / low > LOG_SPREAD) {
      const bounds = [low * 0.8, top * 1.25];
      const { values, texts } = logTicks(...bounds, this.kind.unit);
      return { ...axis, type: "log", range: bounds.map(Math.log10), tickvals: values, ticktext: texts };
    }
    this.bound = this.kind.steadyTop ?? steadyBound(top, this.bound, this.kind.binary);
    const { values, texts } = valueTicks(this.bound, this.kind.unit);
    return { ...axis, type: "linear", range: [0, this.bound], tickvals: values, ticktext: texts };
  }

  markerLine(marker) {
    const tint = colour(marker.bad ? "failed" : "marker");
    return { type: "line", xref: "x", yref: "paper", x0: marker.at, x1: marker.at, y0: 0, y1: 1, line: { color: tint, width: 1, dash: "dot" } };
  }

  markerSign(marker) {
    const tint = colour(marker.bad ? "failed" : "marker");
    return { x: marker.at, y: 1, xref: "x", yref: "paper", yanchor: "middle", text: marker.bad ? "✕" : "▼", showarrow: false, font: { size: 10, color: tint }, captureevents: true, hovertext: marker.text, name: String(marker.index) };
  }

  listen() {
    this.box.append(this.line);
    this.box.on("plotly_relayout", (change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) this.handlers.onZoom(from, to);
    });
    this.box.on("plotly_doubleclick", () => this.handlers.onZoomOut());
    this.box.on("plotly_clickannotation", (event) => this.handlers.onMarker(Number(event.annotation.name)));
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => this.handlers.onPointer(null));
  }

  point(event) {
    if (this.kind.kind === "distribution") return;
    const axis = this.box._fullLayout?.xaxis;
    if (!axis) return;
    const x = event.clientX - this.box.getBoundingClientRect().left - axis._offset;
    this.handlers.onPointer(x < 0 || x > axis._length ? null : axis.p2d(x));
  }

  /** The crosshair at a moment, and the values there; null: no crosshair, the newest values. */
  showValues(at) {
    this.hovering = at ?? undefined;
    const axis = this.box._fullLayout?.xaxis;
    const distribution = this.kind.kind === "distribution";
    this.line.hidden = at === null || !axis || distribution;
    if (!this.line.hidden) this.line.style.transform = `translateX(${Math.round(axis._offset + axis.d2p(at))}px)`;
    if (!this.last || distribution) return;
    const index = at === null ? this.newest() : nearest(this.last.times, at);
    const keys = this.kind.series.map(([name, tint, label]) => this.key(tint, label, (this.last.series[name] ?? [])[index] ?? null));
    const moment = at === null ? [] : [el("span", {}, momentText(this.last.times[index]))];
    this.legend.replaceChildren(...moment, ...keys);
  }

  newest() {
    const row = this.last.series[this.kind.series.at(-1)[0]] ?? [];
    return row.findLastIndex((value) => value !== null && value !== undefined);
  }

  key(tint, label, value) {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("viewBox", "0 0 12 12");
    mark.setAttribute("aria-hidden", "true");
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, number] of [["x", 1], ["y", 4], ["width", 10], ["height", 4], ["rx", 2]]) dot.setAttribute(name, number);
    dot.setAttribute("fill", colour(tint));
    mark.append(dot);
    return el("span", { class: "key" }, mark, `${label} ${this.kind.unit(value)}`);
  }

  showEmpty(empty) {
    if (!this.emptyNote) this.emptyNote = el("p", { class: "plot-empty hint", hidden: true }, this.kind.empty);
    if (!this.emptyNote.isConnected) this.box.append(this.emptyNote);
    if (this.line.parentElement !== this.box) this.box.append(this.line);
    this.emptyNote.hidden = !empty;
  }

  /** In place of the plot: what is missing, and how to try again. */
  note(text, symbol, retry) {
    if (this.drawn) {
      Plotly.purge(this.box);
      this.drawn = false;
    }
    const button = retry ? el("button", { class: "button small", type: "button", click: retry }, icon("restart"), "Try again") : null;
    this.box.replaceChildren(el("div", { class: "blank small" }, icon(symbol), el("p", {}, text), button));
    this.noted = true;
  }

  clearNote() {
    if (this.noted || !this.drawn) this.box.replaceChildren();
    this.noted = false;
  }

  retheme() {
    if (this.last) this.draw(this.last);
  }
}

function nearest(times, at) {
  let [low, high] = [0, times.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - times[low - 1] < times[low] - at ? low - 1 : low;
}
