/** The arguments of a call, as a person reads them: a small table, or JSON where they are nested. */

import { formatJson } from "../format.js";
import { h } from "./dom.js";
import { section } from "./fold.js";

/** @param {unknown} input */
export function argumentsOf(input) {
  const entries = input && typeof input === "object" && !Array.isArray(input) ? Object.entries(input) : null;
  if (!entries) return section("Input", formatJson(input));
  if (!entries.length) return h("p", { class: "quiet" }, "Without arguments.");
  return h("dl", { class: "arguments" }, ...entries.flatMap(([name, value]) => [h("dt", {}, label(name)), h("dd", {}, shown(value))]));
}

/** @param {string} name In snake or camel case. */
function label(name) {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** @param {unknown} value */
function shown(value) {
  if (value === null || value === "") return "–";
  return typeof value === "object" ? h("code", {}, JSON.stringify(value)) : String(value);
}
