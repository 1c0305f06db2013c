/** A button that copies text and says so. */

import { fill, h } from "./dom.js";
import { icon } from "./icons.js";

const SAID_MS = 1600;

/**
 * @param {() => string} text
 * @param {string} label
 */
export function copyButton(text, label) {
  const button = h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, click: copy },
    icon("copy"),
  );

  async function copy() {
    const copied = await writeClipboard(text());
    fill(button, icon(copied ? "check" : "alert"));
    button.setAttribute("aria-label", copied ? "Copied" : "The browser blocked copying");
    setTimeout(() => {
      fill(button, icon("copy"));
      button.setAttribute("aria-label", label);
    }, SAID_MS);
  }

  return button;
}

/** @param {string} text */
async function writeClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
