/** What the model thought before it answered: its last lines while it thinks, folded afterwards. */

import { formatDuration } from "../format.js";
import { MarkdownView } from "../markdown/view.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { ReasoningPart } from "../types.js" */

/** A replay is read in less: it says nothing about the model. */
const SHORTEST_MS = 50;

export class ReasoningView {
  #label = h("span");
  #text = new MarkdownView();
  #body = h("div", { class: "fold-body" }, this.#text.element);
  /** @type {string | undefined} */
  #state;
  element = h("details", { class: "reasoning" }, h("summary", {}, icon("spark"), this.#label, icon("chevron")), this.#body);

  /** @param {ReasoningPart} part */
  update({ text, state, durationMs = 0 }) {
    const running = state === "streaming";
    this.#label.textContent = running ? "Thinking…" : durationMs < SHORTEST_MS ? "Thought" : `Thought for ${formatDuration(durationMs)}`;
    this.#text.update(text);
    if (state !== this.#state && (running || this.#state)) this.element.open = running; // later it is the reader's choice
    this.#state = state;
    this.element.classList.toggle("running", running);
    if (running) this.#body.scrollTop = this.#body.scrollHeight;
  }
}
