/** A call that waits until somebody allows or denies it. */

import { toolName } from "../reducer.js";
import { argumentsOf } from "./arguments.js";
import { fill, h } from "./dom.js";
import { RequestForm, labelled } from "./request-form.js";

/** @import { Part, ToolPart } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** A key that was meant for another field decides nothing: the card takes keys when it has been there for so long. */
const ARMED_MS = 800;
const KEYS = "aria-keyshortcuts";

/** @param {Part} part */
export function isApproval(part) {
  return /** @type {ToolPart} */ (part).state === "approval-requested";
}

export class ApprovalCard {
  #form;
  #reason = h("input", { type: "text", maxlength: 2000, autocomplete: "off", keydown: (/** @type {KeyboardEvent} */ event) => this.#onReasonKey(event) });
  #buttons = h("div", { class: "request-buttons" });
  #callId = "";

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#form = new RequestForm(actions);
    this.element = this.#form.element;
    this.element.classList.add("approval");
    this.element.tabIndex = -1;
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** @param {ToolPart} part */
  update(part) {
    if (part.toolCallId === this.#callId) return this.#form.show(part, "", () => []);
    this.#callId = part.toolCallId;
    this.element.removeAttribute(KEYS);
    setTimeout(() => this.element.setAttribute(KEYS, "A D"), ARMED_MS);
    this.#form.show(part, `Allow ${toolName(part)}?`, () => [
      part.approval?.requestReason && h("p", { class: "request-reason" }, part.approval.requestReason),
      argumentsOf(part.input),
      this.#buttons,
    ]);
    this.#offer();
  }

  /** What can be decided. */
  #offer() {
    const approve = this.#form.button("Approve", () => ({ approved: true }), "primary");
    const deny = h("button", { type: "button", class: "small-button", click: () => this.#askWhy() }, "Deny");
    approve.append(h("kbd", { "aria-hidden": "true" }, "A"));
    deny.append(h("kbd", { "aria-hidden": "true" }, "D"));
    fill(this.#buttons, approve, deny);
  }

  /** A denial may have a reason, which the model reads. */
  #askWhy() {
    const deny = this.#form.button("Deny it", () => this.#denial(), "strong");
    const back = h("button", { type: "button", class: "small-button", click: () => this.#back() }, "Back");
    fill(this.#buttons, labelled("Why not? The model reads it (optional)", this.#reason), deny, back);
    this.#reason.focus();
  }

  #back() {
    this.#offer();
    this.element.focus();
  }

  #denial() {
    const reason = this.#reason.value.trim();
    return reason ? { approved: false, reason } : { approved: false };
  }

  /** @param {KeyboardEvent} event */
  #onReasonKey(event) {
    if (event.isComposing) return;
    if (event.key === "Escape") this.#back();
    else if (event.key === "Enter") void this.#form.send(this.#denial());
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (!this.element.hasAttribute(KEYS) || event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "a") void this.#form.send({ approved: true });
    else if (key === "d") this.#askWhy();
    else return;
    event.preventDefault();
  }
}
