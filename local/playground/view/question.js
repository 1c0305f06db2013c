/** The user's own words, as they were typed. They can be written anew in their place. */

import { textOf } from "../reducer.js";
import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { versions } from "./versions.js";

/** @import { Message } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

export class QuestionView {
  #text = h("div", { class: "question" });
  #tools = h("div", { class: "question-tools" });
  element = h("article", { class: "message asked", "aria-label": "You" }, this.#text, this.#tools);
  #actions;
  #shown = "";
  /** @type {Message | null} */
  #message = null;

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /** @param {Message} message @param {{ busy: boolean }} place */
  update(message, { busy }) {
    const { nodeId, siblings } = message.metadata;
    const shown = JSON.stringify([textOf(message), nodeId !== undefined && !busy, siblings]);
    if (shown === this.#shown && message === this.#message) return;
    const isOther = this.#message && textOf(this.#message) !== textOf(message);
    this.#shown = shown;
    this.#message = message;
    if (this.element.contains(this.#field) && !isOther) return; // somebody is writing
    this.#show();
  }

  #field = h("textarea", {
    class: "rewrite",
    rows: 1,
    maxlength: 32000,
    "aria-label": "Your message, in other words",
    keydown: (/** @type {KeyboardEvent} */ event) => this.#onKey(event),
  });

  #show() {
    const message = /** @type {Message} */ (this.#message);
    const [, isEditable] = JSON.parse(this.#shown);
    this.#text.textContent = textOf(message);
    const edit = h("button", { type: "button", class: "icon-button", "aria-label": "Edit this message", title: "Edit", click: () => this.#edit() }, icon("pencil"));
    fill(this.#tools, isEditable && edit, versions(message, this.#actions.switchBranch));
    fill(this.element, this.#text, this.#tools);
  }

  #edit() {
    this.#field.value = textOf(/** @type {Message} */ (this.#message));
    const cancel = h("button", { type: "button", class: "small-button", click: () => this.#close() }, "Cancel");
    const send = h("button", { type: "button", class: "small-button primary", click: () => this.#send() }, "Send");
    fill(this.element, this.#field, h("div", { class: "question-tools shown" }, cancel, send));
    this.#field.focus();
    this.#field.setSelectionRange(this.#field.value.length, this.#field.value.length);
  }

  #close() {
    this.#show();
    /** @type {HTMLElement | null} */ (this.#tools.querySelector("button"))?.focus();
  }

  #send() {
    const text = this.#field.value.trim();
    const message = /** @type {Message} */ (this.#message);
    this.#show();
    this.#actions.focus();
    if (text && text !== textOf(message)) this.#actions.rewrite(message, text);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.isComposing) return;
    if (event.key === "Escape") this.#close();
    else if (event.key === "Enter" && !event.shiftKey) this.#send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
