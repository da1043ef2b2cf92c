// One chart: a plotly.js plot in Slipway's colours and units, with a legend that shows the values at the crosshair.

import { el, icon, need, svg } from "../core/dom.js";
import { duration } from "../core/format.js";
import { logTicks, momentText, steadyBound, timeTicks, valueTicks } from "./axes.js";
import { KINDS, kindByVersion, shownSeries } from "./kinds.js";
import { signOf } from "./marks.js";
import { nearest, newestKnown } from "./series.js";
import { drawingOf } from "./traces.js";

/**
 * @import { Drawing, Marker, Outage, View } from "./traces.js"
 *
 * @typedef {object} PlotHandlers
 * @property {(from: number, to: number) => void} onZoom called with two moments in unix seconds
 * @property {() => void} onZoomOut
 * @property {(at: number | null) => void} onPointer called with the time under the pointer; null when the pointer leaves
 * @property {(index: number) => void} onMarker called with the index of the chosen marker
 * @property {(event: KeyboardEvent) => void} [onKey] called with a key that is pressed on the chart
 */

const CONFIG = { displayModeBar: false, doubleClick: false, showTips: false };
const LOG_SPREAD = 20; // the ratio of the largest to the smallest value that makes an axis logarithmic
const NARROW = 480; // pixels
const SIGNED = new Set(["latency", "throughput", "arms_latency", "arms_throughput", "replicas"]); // charts with space for signs of markers
const WORDS = 64; // pixels of "down 9.9 s"

/**
 * Returns the colour of a custom property in the current theme.
 * @param {string} name
 */
function colour(name) {
  const probe = document.body.appendChild(el("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/**
 * Escapes a text for plotly.js, which reads some tags in texts.
 * @param {string} text
 */
function withoutTags(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

export class Plot {
  #visible = true;
  #drawn = false;
  #noted = false;
  /**
   * The newest view.
   * @type {View | null}
   */
  #view = null;
  /**
   * The view to draw when the chart becomes visible; null while it is visible.
   * @type {View | null}
   */
  #late = null;
  /**
   * The bound of the value axis; undefined before the first drawing.
   * @type {number | undefined}
   */
  #bound;
  /**
   * The time of the crosshair; null if there is no crosshair.
   * @type {number | null}
   */
  #hovering = null;

  /**
   * @param {HTMLElement} figure the element of the chart; its `data-chart` names the kind
   * @param {PlotHandlers} handlers
   */
  constructor(figure, handlers) {
    this.name = figure.dataset.chart ?? "";
    this.kind = KINDS[this.name];
    this.handlers = handlers;
    this.box = /** @type {PlotlyElement} */ (need("[data-plot]", HTMLElement, figure));
    this.legend = need("[data-legend]", HTMLElement, figure);
    this.line = el("div", { class: "crosshair", hidden: true });
    this.emptyNote = el("p", { class: "plot-empty hint", hidden: true }, this.kind.empty);
    if (handlers.onKey && this.kind.kind !== "distribution") this.#takeKeys(handlers.onKey);
    new IntersectionObserver((entries) => {
      this.#visible = entries[entries.length - 1].isIntersecting;
      if (this.#visible && this.#late) this.draw(this.#late);
    }).observe(figure);
    new ResizeObserver(() => this.#drawn && this.#view && this.draw(this.#view)).observe(this.box);
  }

  /**
   * Draws a view, or keeps the view for later while the chart is not visible.
   * @param {View} view
   */
  draw(view) {
    this.#view = view;
    this.#late = this.#visible ? null : view;
    if (!this.#visible) return;
    const drawing = drawingOf(this.name, view, colour, this.kind);
    const empty = drawing.traces.length === 0;
    this.#clearNote();
    Plotly.react(this.box, drawing.traces, this.#layout(view, drawing), CONFIG);
    if (!this.#drawn) this.#listen();
    this.#drawn = true;
    if (this.#hovering === null) this.showValues(null);
    this.#showEmpty(empty);
  }

  /**
   * Gives each version its own lines, if the chart can show versions separately.
   * @param {string[]} versions the versions to show; empty for all versions together
   */
  showVersions(versions) {
    this.kind = versions.length ? kindByVersion(this.name, versions) : KINDS[this.name];
    this.#bound = undefined;
  }

  /** Draws again in the colours of the current theme. */
  retheme() {
    if (this.#view) this.draw(this.#view);
  }

  /**
   * Shows a sentence in place of the plot, with a button to try again.
   * @param {string} text
   * @param {string} symbol the name of an icon
   * @param {() => void} [retry]
   */
  note(text, symbol, retry) {
    if (this.#drawn) {
      Plotly.purge(this.box);
      this.#drawn = false;
    }
    const again = { class: "button small", type: "button", click: () => retry?.() };
    const button = retry ? el("button", again, icon("restart"), "Try again") : null;
    this.box.replaceChildren(el("div", { class: "blank small" }, icon(symbol), el("p", {}, text), button));
    this.#noted = true;
  }

  /**
   * Shows the crosshair at a time, and the values at that time.
   * @param {number | null} at unix seconds; null for no crosshair and the newest values
   */
  showValues(at) {
    this.#hovering = at;
    if (this.kind.kind === "distribution") return;
    const axis = this.box._fullLayout?.xaxis;
    this.line.hidden = at === null || !axis;
    if (at !== null && axis) this.line.style.transform = `translateX(${Math.round(axis._offset + axis.d2p(at))}px)`;
    if (!this.#view) return;
    const { times, series, end, outages } = this.#view;
    const shown = shownSeries(this.kind, series);
    const rows = shown.map(([name]) => series[name] ?? []);
    const index = at === null ? newestKnown(times, rows, end) : nearest(times, at);
    const keys = [
      ...shown.map(([name, tint, label]) => this.#key(tint, label, series[name]?.[index] ?? null)),
      ...this.#keysBefore(times[index] ?? at),
    ];
    const moment = at === null ? [] : [el("span", {}, momentText(times[index] ?? at))];
    const down = outages.some((outage) => (at ?? end) >= outage.start && (at ?? end) <= outage.end);
    const words = down ? [el("span", { class: "key-down" }, "the server was down and answered no request")] : keys;
    this.legend.replaceChildren(...moment, ...words);
  }

  /**
   * Returns the values of the earlier span at a time.
   * @param {number | null | undefined} at unix seconds
   */
  #keysBefore(at) {
    const before = this.#view?.before;
    if (!before?.times.length || at === null || at === undefined) return [];
    const index = nearest(before.times, at);
    return (this.kind.before ?? []).map(([name, tint, label]) =>
      this.#key(tint, `${label} ${before.label}`, before.series[name]?.[index] ?? null),
    );
  }

  /**
   * Lets the chart have the focus and take keys. A screen reader hears the values at the crosshair.
   * @param {(event: KeyboardEvent) => void} onKey
   */
  #takeKeys(onKey) {
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "application");
    this.box.setAttribute("aria-describedby", "chart-keys");
    this.box.addEventListener("keydown", onKey);
    this.box.addEventListener("focus", () => this.legend.setAttribute("aria-live", "polite"));
    this.box.addEventListener("blur", () => {
      this.legend.removeAttribute("aria-live");
      this.handlers.onPointer(null);
    });
  }

  /**
   * @param {string} tint
   * @param {string} label
   * @param {number | null} value
   */
  #key(tint, label, value) {
    const dot = svg("rect", { x: 1, y: 4, width: 10, height: 4, rx: 2, fill: colour(tint) });
    const mark = svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, dot);
    return el("span", { class: "key" }, mark, `${label} ${this.kind.unit(value)}`);
  }

  /** @param {boolean} empty */
  #showEmpty(empty) {
    for (const part of [this.emptyNote, this.line]) if (part.parentElement !== this.box) this.box.append(part);
    this.emptyNote.hidden = !empty;
  }

  #clearNote() {
    if (this.#noted || !this.#drawn) this.box.replaceChildren();
    this.#noted = false;
  }

  #listen() {
    this.box.append(this.line);
    this.box.on("plotly_relayout", (change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) this.handlers.onZoom(from, to);
    });
    this.box.on("plotly_doubleclick", () => this.handlers.onZoomOut());
    this.box.on("plotly_clickannotation", (event) => this.handlers.onMarker(Number(event.annotation.name)));
    this.box.addEventListener("pointermove", (event) => this.#point(event));
    this.box.addEventListener("pointerleave", () => this.handlers.onPointer(null));
  }

  /** @param {PointerEvent} event */
  #point(event) {
    if (this.kind.kind === "distribution") return;
    const axis = this.box._fullLayout?.xaxis;
    if (!axis) return;
    const x = event.clientX - this.box.getBoundingClientRect().left - axis._offset;
    this.handlers.onPointer(x < 0 || x > axis._length ? null : axis.p2d(x));
  }

  /**
   * Returns plotly.js's layout.
   * @param {View} view
   * @param {Drawing} drawing
   */
  #layout(view, drawing) {
    const distribution = this.kind.kind === "distribution";
    const grid = colour("grid");
    const signs = SIGNED.has(this.name) ? view.markers : [];
    return {
      autosize: true,
      margin: { l: this.box.clientWidth < NARROW ? 52 : 64, r: 8, t: 6, b: 22 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("ink-3") },
      showlegend: false,
      hovermode: false,
      dragmode: distribution ? false : "zoom",
      barmode: "stack",
      bargap: distribution ? 0.35 : 0.1,
      xaxis: distribution ? sizeAxis(grid) : this.#timeAxis(view, grid),
      yaxis: this.#valueAxis(drawing, grid),
      shapes: distribution ? [] : [...view.outages.map(outageBand), ...view.markers.map(markerLine)],
      annotations: distribution ? [] : [...signs.map(markerSign), ...view.outages.map((one) => outageSign(one, view, this.box.clientWidth))],
      uirevision: "steady",
    };
  }

  /**
   * @param {View} view
   * @param {string} grid
   */
  #timeAxis({ start, end }, grid) {
    const most = Math.max(3, Math.min(9, Math.floor(this.box.clientWidth / 95)));
    const { values, texts } = timeTicks(start, end, most);
    return {
      type: "linear",
      range: [start, end],
      tickvals: values,
      ticktext: texts,
      showgrid: false,
      zeroline: false,
      linecolor: grid,
      showline: true,
      ticks: "outside",
      tickcolor: grid,
      ticklen: 4,
      fixedrange: false,
      uirevision: `${start}`,
    };
  }

  /**
   * @param {Drawing} drawing
   * @param {string} grid
   */
  #valueAxis({ traces, top, low }, grid) {
    const axis = { fixedrange: true, gridcolor: grid, zeroline: false, automargin: false };
    if (!traces.length) return { ...axis, type: "linear", range: [0, 1], tickvals: [], showgrid: false };
    if (this.kind.log && low > 0 && top / low > LOG_SPREAD) {
      const [from, to] = [low * 0.8, top * 1.25];
      const { values, texts } = logTicks(from, to, this.kind.unit);
      return { ...axis, type: "log", range: [Math.log10(from), Math.log10(to)], tickvals: values, ticktext: texts };
    }
    this.#bound = this.kind.steadyTop ?? steadyBound(top, this.#bound, this.kind.binary);
    const { values, texts } = valueTicks(this.#bound, this.kind.unit, this.kind.whole);
    return { ...axis, type: "linear", range: [0, this.#bound], tickvals: values, ticktext: texts };
  }
}

/**
 * Returns the axis of a distribution over batch sizes.
 * @param {string} grid
 */
function sizeAxis(grid) {
  return { type: "category", fixedrange: true, showgrid: false, linecolor: grid, tickfont: { size: 11 } };
}

/** @param {Outage} outage */
function outageBand({ start, end }) {
  const line = { width: 0 };
  return {
    type: "rect",
    layer: "below",
    xref: "x",
    yref: "paper",
    x0: start,
    x1: end,
    y0: 0,
    y1: 1,
    fillcolor: colour("failed"),
    opacity: 0.12,
    line,
  };
}

/**
 * Marks an outage with words, or with a sign if the band has no space for words.
 * @param {Outage} outage
 * @param {View} view
 * @param {number} width the width of the chart in pixels
 */
function outageSign({ start, end }, view, width) {
  const [from, to] = [Math.max(start, view.start), Math.min(end, view.end)];
  const room = ((to - from) / (view.end - view.start)) * width;
  return {
    x: (from + to) / 2,
    y: 0.5,
    xref: "x",
    yref: "paper",
    text: room > WORDS ? `down ${duration(end - start)}` : "✕",
    showarrow: false,
    font: { size: 10, color: colour("failed") },
  };
}

/** @param {Marker} marker */
function markerColour({ bad }) {
  return colour(bad ? "failed" : "marker");
}

/** @param {Marker} marker */
function markerLine(marker) {
  const line = { color: markerColour(marker), width: 1, dash: "dot" };
  return { type: "line", xref: "x", yref: "paper", x0: marker.at, x1: marker.at, y0: 0, y1: 1, line };
}

/** @param {Marker} marker */
function markerSign(marker) {
  return {
    x: marker.at,
    y: 1,
    xref: "x",
    yref: "paper",
    yanchor: "middle",
    text: signOf(marker),
    showarrow: false,
    font: { size: 10, color: markerColour(marker) },
    captureevents: true,
    hovertext: withoutTags(marker.text),
    name: String(marker.index),
  };
}
