// Refreshes the picture of a server's memory while somebody looks at it.

import { need } from "../core/dom.js";

const EVERY_MS = 5000;

function refresh() {
  if (!document.hidden) window.htmx?.trigger(need("#memory", HTMLElement), "changed");
}

setInterval(refresh, EVERY_MS);
