// Makes the scrolling parts of a page, such as wide tables, reachable by keyboard.

import { $$ } from "../core/dom.js";

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
