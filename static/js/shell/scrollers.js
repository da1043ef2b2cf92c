// Makes the scrolling parts of a page, such as wide tables, reachable by keyboard, and shows the present tab.

import { $, $$ } from "../core/dom.js";

const INSIDE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";

/** Makes scrolling parts reachable by Tab, unless an element inside them already is. */
export function reachScrollers() {
  for (const element of $$(".table-wrap")) {
    const scrolls = element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight;
    const reached = $$(INSIDE, element).some((one) => one.checkVisibility() && !one.matches(":disabled"));
    if (scrolls && !reached) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}

/** Scrolls the row of tabs, which may be wider than the window, so that the present tab is seen. */
export function showPresentTab() {
  const [row, tab] = [$(".tabs"), $(".tabs [aria-current]")];
  if (row && tab) row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
}
