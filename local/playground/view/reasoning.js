/** What the model thought before it answered, folded. */

import { MarkdownView } from "../markdown/view.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { ReasoningPart } from "../types.js" */

export class ReasoningView {
  #label = h("span");
  #text = new MarkdownView();
  element = h(
    "details",
    { class: "reasoning" },
    h("summary", {}, icon("spark"), this.#label, icon("chevron")),
    h("div", { class: "fold-body" }, this.#text.element),
  );

  /** @param {ReasoningPart} part */
  update(part) {
    this.#label.textContent = part.state === "streaming" ? "Thinking…" : "Reasoning";
    this.element.classList.toggle("running", part.state === "streaming");
    this.#text.update(part.text);
  }
}
