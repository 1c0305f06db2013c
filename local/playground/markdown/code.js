/** Code blocks: a bar with the language and a button to copy, and colours once the block is complete. */

import { copyButton } from "../view/copy.js";
import { highlight } from "./highlight.js";

/** @param {import("./blocks.js").Code} block */
export function codeBlock({ language, text, closed }) {
  const label = document.createElement("span");
  label.textContent = language || "text";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  bar.append(
    label,
    copyButton(() => text, "Copy code"),
  );
  const code = document.createElement("code");
  // Colouring the whole block for each new word would cost more with every line.
  code.append(...(closed ? highlight(text, language) : [new Text(text)]));
  const frame = document.createElement("pre");
  frame.tabIndex = 0;
  frame.setAttribute("aria-label", language ? `${language} code` : "Code");
  frame.setAttribute("role", "group");
  frame.append(code);
  const element = document.createElement("div");
  element.className = "code-block";
  element.append(bar, frame);
  return element;
}
