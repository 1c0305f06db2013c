/** A labelled text inside something that folds: inputs, outputs, errors. */

import { h } from "./dom.js";

/** @param {string} title @param {string} text @param {string} [kind] */
export function section(title, text, kind = "") {
  const frame = h("pre", { tabindex: 0, role: "group", "aria-label": title }, h("code", {}, text || "–"));
  return h("div", { class: `tool-section ${kind}` }, h("div", { class: "tool-label" }, title), frame);
}
