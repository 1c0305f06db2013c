/** A text in Markdown that may still grow. What is shown is always the rendering of the newest text. */

import { h } from "../view/dom.js";
import { buildElements, parse } from "./elements.js";

const EMPTY_LINE = /^[ \t]*$/;
const START = { at: 0, blocks: 0 };

export class MarkdownView {
  element = h("div", { class: "markdown" });
  #text = "";
  /** Where the part begins that a longer text may change, and how many blocks come before it. */
  #open = START;

  /** @param {string} source */
  update(source) {
    const text = source.replace(/\r\n?/g, "\n");
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#open = START;
    this.#text = text;
    let { tokens, hasDefinitions } = parse(text.slice(this.#open.at));
    if (hasDefinitions && this.#open.at > 0) {
      // They also apply to the links above.
      this.#open = START;
      ({ tokens } = parse(text));
    }
    while (this.element.childNodes.length > this.#open.blocks) this.element.lastChild?.remove();
    /** @type {NodeListOf<HTMLElement>} */
    const headings = this.element.querySelectorAll("[data-level]");
    const levels = Array.from(headings, ({ dataset }) => Number(dataset.level));
    this.element.append(buildElements(tokens, levels));
    if (!hasDefinitions) this.#open = lastOpening(tokens, text, this.#open);
  }
}

/**
 * Find the last block whose beginning is settled: it follows an empty line, and its first line is complete. The blocks
 * before it stay as they are, however the text goes on.
 * @param {any[]} tokens
 * @param {string} text
 * @param {{ at: number, blocks: number }} open
 */
function lastOpening(tokens, text, open) {
  const lines = text.slice(open.at).split("\n");
  const blocks = tokens.filter(({ level, nesting }) => level === 0 && nesting >= 0);
  const isSettled = (/** @type {any} */ { map: [line] }) => line > 0 && EMPTY_LINE.test(lines[line - 1]) && line < lines.length - 1;
  const index = blocks.findLastIndex(isSettled);
  if (index < 0) return open;
  const before = lines.slice(0, blocks[index].map[0]).join("\n");
  return { at: open.at + before.length + 1, blocks: open.blocks + index };
}
