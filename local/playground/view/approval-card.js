/** A call that waits until somebody allows or denies it. */

import { formatJson } from "../format.js";
import { toolName } from "../reducer.js";
import { h } from "./dom.js";
import { section } from "./fold.js";
import { RequestForm, labelled } from "./request-form.js";

/** @import { Part, ToolPart } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** @param {Part} part */
export function isApproval(part) {
  return /** @type {ToolPart} */ (part).state === "approval-requested";
}

export class ApprovalCard {
  #form;
  #reason = h("input", { type: "text", maxlength: 2000, autocomplete: "off" });

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#form = new RequestForm(actions);
    this.element = this.#form.element;
  }

  /** @param {ToolPart} part */
  update(part) {
    this.#form.show(part, `Allow ${toolName(part)}?`, () => [
      part.approval?.requestReason && h("p", {}, part.approval.requestReason),
      section("Input", formatJson(part.input)),
      labelled("Reason (optional)", this.#reason),
      h(
        "div",
        { class: "request-buttons" },
        this.#form.button("Approve", () => this.#verdict(true), "strong"),
        this.#form.button("Deny", () => this.#verdict(false), "strong"),
      ),
    ]);
  }

  /** @param {boolean} approved */
  #verdict(approved) {
    const reason = this.#reason.value.trim();
    return reason ? { approved, reason } : { approved };
  }
}
