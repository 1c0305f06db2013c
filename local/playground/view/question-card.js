/** What the model asks its user: with choices a button for each, else a field. */

import { h } from "./dom.js";
import { RequestForm, labelled } from "./request-form.js";

/** @import { Part, ToolPart } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** @param {Part} part */
export function isQuestion(part) {
  return part.type === "tool-ask_user" && Boolean(/** @type {ToolPart} */ (part).waits);
}

export class QuestionCard {
  #form;
  #field = h("textarea", { rows: 2, maxlength: 10000 });

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#form = new RequestForm(actions);
    this.element = this.#form.element;
  }

  /** @param {ToolPart} part */
  update(part) {
    const { question, choices } = /** @type {{ question?: string, choices?: string[] }} */ (part.input ?? {});
    const skip = this.#form.button("Skip", () => ({ error: "The user did not answer." }));
    this.#form.show(part, question ?? "The assistant asks", () =>
      choices?.length
        ? [h("div", { class: "request-buttons" }, ...choices.map((choice) => this.#choice(choice)), skip)]
        : [
            labelled("Your answer", this.#field),
            h("div", { class: "request-buttons" }, this.#form.button("Answer", () => this.#written(), "strong"), skip),
          ],
    );
  }

  /** @param {string} choice */
  #choice(choice) {
    return this.#form.button(choice, () => ({ output: choice }), "strong");
  }

  #written() {
    const output = this.#field.value.trim();
    return output ? { output } : null;
  }
}
