/** A text in Markdown that may still grow: plain at first, rendered a few times a second, plain again if that fails. */

import { buildElement } from "./elements.js";
import { renderMarkdown } from "./service.js";

const PAUSE_MS = 200;
/** A long text is rendered less often: the renderer is left idle for this many times what it took. */
const IDLE_SHARE = 3;

export class MarkdownView {
  element = document.createElement("div");
  #text = "";
  /** @type {string | null} The text whose rendering is shown. */
  #rendered = null;
  /** @type {string[]} The blocks that are shown, as JSON. */
  #blocks = [];
  #working = false;

  constructor() {
    this.element.className = "markdown plain";
  }

  /** @param {string} text */
  update(text) {
    if (text === this.#text) return;
    this.#text = text;
    if (this.element.classList.contains("plain")) this.#showPlain();
    if (!this.#working) void this.#work();
  }

  async #work() {
    this.#working = true;
    while (this.#rendered !== this.#text) {
      const [text, began] = [this.#text, performance.now()];
      const blocks = await renderMarkdown(text);
      this.#rendered = text;
      if (blocks) this.#show(blocks);
      else this.#showPlain();
      const pause = Math.max(PAUSE_MS, IDLE_SHARE * (performance.now() - began));
      if (text !== this.#text) await new Promise((resolve) => setTimeout(resolve, pause));
    }
    this.#working = false;
  }

  #showPlain() {
    this.element.classList.add("plain");
    this.element.textContent = this.#text;
    this.#blocks = [];
  }

  /** Blocks that did not change stay as they are, with what is selected in them. @param {import("./elements.js").Tree[]} trees */
  #show(trees) {
    const blocks = trees.map((tree) => JSON.stringify(tree));
    if (!this.#blocks.length) this.element.replaceChildren();
    this.element.classList.remove("plain");
    const changed = blocks.findIndex((block, index) => block !== this.#blocks[index]);
    const kept = changed < 0 ? blocks.length : changed;
    while (this.element.childNodes.length > kept) this.element.lastChild?.remove();
    this.element.append(...trees.slice(kept).map(buildElement));
    this.#blocks = blocks;
  }
}
