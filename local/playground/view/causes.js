/** Why a turn failed, as the log of the local stack tells it. A deployed stack tells nobody. */

import { h } from "./dom.js";

/** A line of the log may come after the end of the answer that it explains. */
const PAUSES_MS = [0, 300, 1_000];

/**
 * @typedef {object} Cause
 * @property {string} message
 * @property {string} cause
 * @property {string} advice
 * @property {string} traceback
 */

/**
 * An element that fills itself once the front has answered. It stays empty where nothing is known.
 * @param {string} requestId
 */
export function causesOf(requestId) {
  const element = h("div", { class: "problem-causes" });
  if (requestId) void fill(element, requestId);
  return element;
}

/** @param {HTMLElement} element @param {string} requestId */
async function fill(element, requestId) {
  for (const milliseconds of PAUSES_MS) {
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    const causes = await read(requestId);
    element.replaceChildren(...causes.map(shown));
    if (causes.length) return;
  }
}

/** @param {string} requestId @returns {Promise<Cause[]>} */
async function read(requestId) {
  try {
    const response = await fetch(`/local/causes?request_id=${encodeURIComponent(requestId)}`);
    return response.ok ? (await response.json()).causes : [];
  } catch {
    return []; // the page of a deployed stack, or one whose stack has ended: there is nothing to tell
  }
}

/** @param {Cause} cause */
function shown({ message, cause, advice, traceback }) {
  return h(
    "div",
    {},
    advice && h("strong", {}, advice),
    h("small", {}, [message, cause].filter(Boolean).join(": ")),
    traceback && h("details", {}, h("summary", {}, "Traceback"), h("pre", { tabindex: "0" }, traceback)),
  );
}
