/** Code blocks: a bar with the language and a button to copy, and the code in colours. */

import { common, createLowlight } from "../vendor/markdown.js";
import { copyButton } from "../view/copy.js";
import { h } from "../view/dom.js";

const MAX_COLOURED_CHARS = 20_000;
const lowlight = createLowlight(common);

/** @param {string} language @param {string} text */
export function codeBlock(language, text) {
  const code = h("code", {}, ...coloured(language, text));
  const bar = h(
    "div",
    { class: "code-bar" },
    h("span", {}, language || "text"),
    copyButton(() => text, "Copy code"),
  );
  const label = language ? `${language} code` : "Code";
  return h("div", { class: "code-block" }, bar, h("pre", { tabindex: 0, role: "group", "aria-label": label }, code));
}

/** @param {string} language @param {string} text @returns {(Node | string)[]} */
function coloured(language, text) {
  if (!lowlight.registered(language) || text.length > MAX_COLOURED_CHARS) return [text];
  return lowlight.highlight(language, text).children.map(piece);
}

/** @param {any} node Text, or an element whose class the grammar of the language names. @returns {Node | string} */
function piece(node) {
  if (node.type === "text") return node.value;
  return h("span", { class: node.properties.className.join(" ") }, ...node.children.map(piece));
}
