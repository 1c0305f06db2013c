/** Short notes at the edge of the page. */

import { byId, h } from "./dom.js";

const SHOWN_MS = 5000;

/** @param {string} text */
export function toast(text) {
  const note = h("div", { class: "toast" }, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), SHOWN_MS);
}

/** Tell the user what a failed action said. @param {unknown} error */
export function toastError(error) {
  toast(error instanceof Error ? error.message : String(error));
}
