/** An empty chat: what this is, and a few questions to begin with. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const EXAMPLES = /** @type {const} */ ([
  ["tool", "Two tools at once", "What is 17.5% of 2,340 and what time is it in Tokyo?"],
  ["spark", "It asks you first", "Please refund order 1001, 80 euros"],
  ["copy", "Write code", "Write a Python function that checks whether a number is prime"],
  ["waterfall", "Compare", "Compare Lambda with containers for a chat backend"],
]);

/** @param {(text: string) => void} ask */
export function welcome(ask) {
  const cards = EXAMPLES.map(([name, title, text]) =>
    h(
      "button",
      { type: "button", class: "example", click: () => ask(text) },
      icon(name),
      h("span", {}, h("strong", {}, title), h("span", { class: "example-text" }, text)),
    ),
  );
  return h(
    "section",
    { class: "welcome" },
    h("h2", {}, "What can I help with?"),
    h(
      "p",
      { class: "quiet" },
      "Your agent, streaming from a real Lambda function. Stop it, reload the page, kill the process: the answer survives.",
    ),
    h("div", { class: "examples" }, ...cards),
  );
}
