// Parts of a page that scroll by themselves, such as wide tables, can be reached by keyboard.

import { $$ } from "../core/dom.js";

const INSIDE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";

/** Puts those that scroll into the order of Tab, where nothing inside them stands in it. */
export function reachScrollers() {
  for (const element of $$(".table-wrap")) {
    const scrolls = element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight;
    const reached = $$(INSIDE, element).some((one) => one.checkVisibility() && !one.matches(":disabled"));
    if (scrolls && !reached) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}
