/** Above the field: messages that were written during an answer and are sent after it. */

import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Conversation } from "../conversation.js" */

/**
 * @typedef {object} QueueActions
 * @property {(index: number) => void} sendQueued
 * @property {(index: number) => void} takeBack
 */

export class QueueView {
  #list = byId("queue");
  #actions;
  #shown = "";

  /** @param {QueueActions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /** @param {Conversation} chat */
  update({ queued, busy }) {
    const shown = JSON.stringify([queued, busy]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#list.hidden = !queued.length;
    fill(this.#list, ...queued.map((text, index) => this.#item(text, index, busy)));
  }

  /** @param {string} text @param {number} index @param {boolean} busy */
  #item(text, index, busy) {
    const { sendQueued, takeBack } = this.#actions;
    return h(
      "li",
      {},
      h("span", { class: "queue-label" }, busy ? "Queued: sent after this answer" : "Not sent"),
      h("span", { class: "queue-text" }, text),
      !busy &&
        h("button", { type: "button", class: "small-button strong", click: () => sendQueued(index) }, "Send now"),
      h(
        "button",
        {
          type: "button",
          class: "icon-button",
          "aria-label": "Remove this message",
          title: "Take back",
          click: () => takeBack(index),
        },
        icon("close"),
      ),
    );
  }
}
