/** The field to write in. Enter sends, or queues during an answer; Shift+Enter starts a new line; the button stops.
 * What is not sent is kept for its chat, as long as the tab is open. */

import { textOf } from "../reducer.js";
import { byId, fill } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Message } from "../types.js" */

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
  #chatId = "";
  /** @type {string[]} What was asked in this chat, the newest first. */
  #asked = [];
  #recalled = -1;

  /** @param {ComposerActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("input", () => {
      this.#recalled = -1;
      this.#changed();
      this.#keepDraft();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#changed();
  }

  /** Turn to another chat, with what was written there and not sent. @param {string} chatId @param {boolean} isNew */
  open(chatId, isNew) {
    this.#chatId = isNew ? "new" : chatId;
    this.#recalled = -1;
    this.text = sessionStorage.getItem(this.#draftKey) ?? "";
  }

  /** The new chat has got its first message: what is written from now on is its own. @param {string} chatId */
  adopt(chatId) {
    this.#chatId = chatId;
  }

  /** @param {{ busy: boolean, stopping: boolean, messages: Message[] }} chat */
  update({ busy, stopping, messages }) {
    this.#busy = busy;
    this.#stopping = stopping;
    this.#asked = messages.filter(({ role }) => role === "user").map(textOf).reverse();
    this.#changed();
  }

  /** @param {string} name Whom the user asks. */
  set asks(name) {
    this.#field.placeholder = name ? `Ask ${name}` : "Ask anything";
  }

  /** Whether the focus may leave it: it is empty. */
  get isUnused() {
    return !this.#field.value && [this.#field, document.body].includes(/** @type {any} */ (document.activeElement));
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
    if (event.key === "ArrowUp" || event.key === "ArrowDown") return this.#recall(event);
    // While an input method composes a character, Enter chooses it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  /** The arrow keys go through what was asked before, from an empty field. @param {KeyboardEvent} event */
  #recall(event) {
    const next = this.#recalled + (event.key === "ArrowUp" ? 1 : -1);
    const isStart = this.#recalled < 0 && (this.#field.value || next < 0);
    if (isStart || next >= this.#asked.length) return;
    event.preventDefault();
    this.#recalled = next;
    this.text = this.#asked[next] ?? "";
  }

  get #draftKey() {
    return `omniagent.draft.${this.#chatId}`;
  }

  #keepDraft() {
    if (this.#field.value) sessionStorage.setItem(this.#draftKey, this.#field.value);
    else sessionStorage.removeItem(this.#draftKey);
  }

  #submit() {
    if (this.#busy) this.#actions.stop();
    else this.#send();
  }

  #send() {
    const text = this.#field.value.trim();
    if (!text) return;
    this.text = "";
    this.#recalled = -1;
    this.#keepDraft();
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
