/** A tool that only the client can run. This page has none of its own: its user writes what the tool returns. */

import { formatJson } from "../format.js";
import { toolName } from "../reducer.js";
import { h } from "./dom.js";
import { section } from "./fold.js";
import { RequestForm, labelled } from "./request-form.js";

/** @import { Part, ToolPart } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** @param {Part} part */
export function isClientTool(part) {
  return Boolean(/** @type {ToolPart} */ (part).waits);
}

export class ClientToolCard {
  #form;
  #field = h("textarea", { rows: 3, spellcheck: "false" });

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#form = new RequestForm(actions);
    this.element = this.#form.element;
  }

  /** @param {ToolPart} part */
  update(part) {
    const failure = () => ({ error: this.#field.value.trim() || "The tool failed." });
    this.#form.show(part, `${toolName(part)} runs in the client`, () => [
      section("Input", formatJson(part.input)),
      labelled("Output (JSON or text), or why it failed", this.#field),
      h(
        "div",
        { class: "request-buttons" },
        this.#form.button("Return this output", () => ({ output: parsed(this.#field.value) }), "strong"),
        this.#form.button("Report a failure", failure),
      ),
    ]);
  }
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
