// Types of other scripts, for the parts that pages use: plotly.js, which pages with charts load, and htmx.

interface PlotlyAxis {
  /** Pixels from the left edge of the plot to the axis. */
  _offset: number;
  /** The axis's length in pixels. */
  _length: number;
  /** Pixels on the axis -> value. */
  p2d(pixels: number): number;
  /** Value -> pixels on the axis. */
  d2p(value: number): number;
}

/** The element that plotly.js has drawn a plot in. */
interface PlotlyElement extends HTMLElement {
  _fullLayout?: { xaxis: PlotlyAxis };
  on(name: "plotly_relayout", listener: (change: { [name: string]: number | undefined }) => void): void;
  on(name: "plotly_doubleclick", listener: () => void): void;
  on(name: "plotly_clickannotation", listener: (event: { annotation: { name: string } }) => void): void;
}

declare const Plotly: {
  react(box: HTMLElement, traces: object[], layout: object, config: object): Promise<unknown>;
  purge(box: HTMLElement): void;
};

interface HtmxRequestDetail {
  elt: HTMLElement;
  headers: Record<string, string>;
  successful: boolean;
  xhr: XMLHttpRequest;
  shouldSwap: boolean;
  requestConfig: { elt: HTMLElement; path: string };
}

interface Window {
  htmx?: {
    process(element: HTMLElement): void;
    trigger(element: HTMLElement, name: string): void;
  };
}

interface HTMLElementEventMap {
  "htmx:configRequest": CustomEvent<HtmxRequestDetail>;
  "htmx:beforeRequest": CustomEvent<HtmxRequestDetail>;
  "htmx:afterRequest": CustomEvent<HtmxRequestDetail>;
  "htmx:beforeSwap": CustomEvent<HtmxRequestDetail>;
  "htmx:afterSwap": CustomEvent<HtmxRequestDetail>;
  "htmx:afterSettle": CustomEvent<HtmxRequestDetail>;
}
