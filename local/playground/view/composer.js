/** The field to write in. Enter sends, or queues during an answer; Shift+Enter starts a new line; the button stops. */

import { byId, fill } from "./dom.js";
import { icon } from "./icons.js";

/**
 * @typedef {object} ComposerActions
 * @property {(text: string) => void} send
 * @property {() => void} stop
 */

export class Composer {
  /** @type {HTMLTextAreaElement} */
  #field = byId("composer-input");
  /** @type {HTMLButtonElement} */
  #button = byId("composer-button");
  #actions;
  #busy = false;
  #stopping = false;

  /** @param {ComposerActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("input", () => this.#changed());
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#changed();
  }

  /** @param {{ busy: boolean, stopping: boolean }} state */
  update({ busy, stopping }) {
    this.#busy = busy;
    this.#stopping = stopping;
    this.#changed();
  }

  get text() {
    return this.#field.value;
  }

  set text(text) {
    this.#field.value = text;
    this.#changed();
  }

  focus() {
    this.#field.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    // While an input method composes a character, Enter chooses it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  #submit() {
    if (this.#busy) this.#actions.stop();
    else this.#send();
  }

  #send() {
    const text = this.#field.value.trim();
    if (!text) return;
    this.text = "";
    this.#actions.send(text);
  }

  #changed() {
    this.#button.disabled = this.#busy ? this.#stopping : !this.#field.value.trim();
    const label = this.#busy ? "Stop the answer" : "Send";
    if (this.#button.getAttribute("aria-label") === label) return;
    this.#button.setAttribute("aria-label", label);
    this.#button.title = this.#busy ? "Stop (Esc)" : "Send (Enter)";
    this.#button.classList.toggle("stop", this.#busy);
    fill(this.#button, icon(this.#busy ? "stop" : "arrowUp"));
  }
}
