/** What the cards of a waiting turn share: a frame, a form that sends once, and what was wrong with the answer. */

import { fill, h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { ToolPart } from "../types.js" */
/** @import { Child } from "./dom.js" */
/** @import { TurnActions } from "./turn-footer.js" */
/** @typedef {import("../conversation.js").CallAnswer} CallAnswer */

let count = 0;

export class RequestForm {
  #title = h("strong", { id: `request-${++count}` });
  #body = h("div", { class: "request-body" });
  #error = h("p", { class: "request-error", role: "alert" });
  #actions;
  /** @type {ToolPart | null} */
  #part = null;
  #sending = false;
  element = h(
    "form",
    { class: "request", tabindex: -1, "aria-labelledby": this.#title.id, submit: (/** @type {Event} */ event) => event.preventDefault() },
    h("div", { class: "request-title" }, icon("alert"), this.#title),
    this.#body,
    this.#error,
  );

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /**
   * Show a request. What its user has written stays when the same one is shown again.
   * @param {ToolPart} part
   * @param {string} title
   * @param {() => Child[]} body
   */
  show(part, title, body) {
    const isNew = part.toolCallId !== this.#part?.toolCallId;
    this.#part = part;
    if (!isNew) return;
    this.#title.textContent = title;
    fill(this.#body, ...body());
  }

  /** @param {string} label @param {() => CallAnswer | null} answer Null when there is nothing to send. @param {string} [kind] */
  button(label, answer, kind = "") {
    const click = () => void this.send(answer());
    return h("button", { type: "button", class: `small-button ${kind}`, click }, label);
  }

  /** Send it once. The form keeps the focus until a tool's card takes its place. @param {CallAnswer | null} answer */
  async send(answer) {
    if (!answer || !this.#part || this.#sending) return;
    this.#sending = true;
    const hadFocus = this.element.contains(document.activeElement);
    this.#error.textContent = "";
    this.#disable(true);
    try {
      const answered = this.#actions.answer(this.#part, answer);
      if (hadFocus) this.element.focus();
      await answered;
    } catch (error) {
      this.#error.textContent = /** @type {Error} */ (error).message;
    }
    this.#disable(false);
    this.#sending = false;
  }

  /** @param {boolean} disabled */
  #disable(disabled) {
    for (const control of this.#body.querySelectorAll("button, input, textarea")) {
      /** @type {HTMLButtonElement} */ (control).disabled = disabled;
    }
  }
}

/** A field with its label. @param {string} label @param {HTMLInputElement | HTMLTextAreaElement} field */
export function labelled(label, field) {
  return h("label", { class: "request-field" }, h("span", {}, label), field);
}
