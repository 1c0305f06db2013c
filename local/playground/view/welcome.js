/** An empty chat: what the agent is, and a few questions to begin with. */

import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { withCode } from "./problem.js";

/** @import { AgentTitle, StackInfo } from "../types.js" */

const DEPLOYED = "Ask something. You can stop an answer, reload the page or lose the connection: the answer survives.";
const LOCAL =
  "Your agent, streaming from a real Lambda function. Stop it, reload the page, or break something: the answer survives.";

export class Welcome {
  element = h("section", { class: "welcome" });
  #ask;
  #shown = "";

  /** @param {(text: string) => void} ask */
  constructor(ask) {
    this.#ask = ask;
    this.update(null);
  }

  /** @param {StackInfo | null} info @param {AgentTitle} [agent] */
  update(info, { title, description, suggestions, problem } = {}) {
    const shown = JSON.stringify([title, description, suggestions, problem]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    if (problem) return fill(this.element, doesNotLoad(problem));
    fill(
      this.element,
      h("h2", {}, title || "What can I help with?"),
      h("p", { class: "quiet" }, description || (info ? LOCAL : DEPLOYED)),
      h("div", { class: "examples" }, ...(suggestions ?? []).map((text) => this.#example(text))),
      description && info && h("p", { class: "quiet small" }, LOCAL),
    );
  }

  /** @param {string} text */
  #example(text) {
    const click = () => this.#ask(text);
    return h("button", { type: "button", class: "example", click }, icon("spark"), h("span", {}, text));
  }
}

/** @param {NonNullable<AgentTitle["problem"]>} problem */
function doesNotLoad({ title, detail }) {
  const text = [h("strong", {}, title), h("span", { class: "problem-detail" }, ...withCode(detail))];
  const end = h("small", {}, "This page goes on once the file is saved.");
  return h("div", { class: "problem", role: "alert" }, icon("alert"), h("div", { class: "problem-text" }, ...text, end));
}
