// A model's charts and the figures above them.

import { $$, data } from "./dom.js";
import { Board } from "./charts.js";
import { memoryTexts, remember, texts, write } from "./numbers.js";

const { model } = data("charts-config");
let memory = null;
const show = () => write($$("[data-now]"), "now", { ...texts(model), memory });

new Board({
  pick: (message) => message.models[model],
  onPoint: (message) => {
    remember(model, message.models[model]);
    memory = memoryTexts(message.memory)[model];
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);
