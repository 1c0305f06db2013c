/** Code blocks: a bar with the language and a button to copy, and the code in colours. */

import { copyButton } from "../view/copy.js";
import { h } from "../view/dom.js";

/** @import { Tree } from "./elements.js" */

const KINDS = new Set(["call", "comment", "deleted", "inserted", "keyword", "number", "string"]);

/** @param {string} language @param {Tree[]} pieces */
export function codeBlock(language, pieces) {
  const code = h("code", {}, ...pieces.map(coloured));
  const bar = h(
    "div",
    { class: "code-bar" },
    h("span", {}, language || "text"),
    copyButton(() => code.textContent ?? "", "Copy code"),
  );
  const label = language ? `${language} code` : "Code";
  return h("div", { class: "code-block" }, bar, h("pre", { tabindex: 0, role: "group", "aria-label": label }, code));
}

/** @param {Tree} piece */
function coloured(piece) {
  if (typeof piece === "string") return piece;
  const [, { kind }, text] = piece;
  return h("span", { class: KINDS.has(String(kind)) && `code-${kind}` }, String(text));
}
