/** What went wrong with the last turn, and the way on. */

import { BUSY } from "../problems.js";
import { causesOf } from "./causes.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Problem } from "../problems.js" */

/**
 * @typedef {object} ProblemActions
 * @property {() => void} retry
 * @property {() => void} takeOver
 * @property {() => void} edit
 * @property {() => void} openSettings
 */

export class ProblemView {
  #wait = h("span", { class: "problem-wait" });
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  element;

  /**
   * @param {Problem} problem
   * @param {ProblemActions} actions
   */
  constructor(problem, actions) {
    this.#countDown(problem.retryAt);
    this.element = h(
      "div",
      { class: "problem", role: "alert" },
      icon("alert"),
      h(
        "div",
        { class: "problem-text" },
        h("strong", {}, problem.title),
        h("span", {}, problem.detail, " ", this.#wait),
        problem.requestId && h("small", {}, "Request id ", h("code", {}, problem.requestId)),
        causesOf(problem.requestId),
      ),
      h("div", { class: "problem-buttons" }, ...buttons(problem, actions)),
    );
  }

  close() {
    clearInterval(this.#timer);
    this.element.remove();
  }

  /** @param {number} retryAt */
  #countDown(retryAt) {
    const tick = () => {
      const seconds = Math.ceil((retryAt - Date.now()) / 1000);
      this.#wait.textContent = seconds > 0 ? `Try again in ${seconds} s.` : retryAt ? "You can try again now." : "";
      if (seconds <= 0) clearInterval(this.#timer);
    };
    this.#timer = setInterval(tick, 250);
    tick();
  }
}

/** @param {Problem} problem @param {ProblemActions} actions */
function buttons({ code, stored }, { retry, takeOver, edit, openSettings }) {
  if (code === "not_found" && stored) return [];
  return [
    code === "unauthenticated" &&
      h("button", { type: "button", class: "small-button", click: openSettings }, "Open settings"),
    code === BUSY &&
      h("button", { type: "button", class: "small-button", click: takeOver }, icon("stop"), "Stop that answer and send"),
    !stored && h("button", { type: "button", class: "small-button", click: edit }, "Edit"),
    h("button", { type: "button", class: "small-button strong", click: retry }, icon("refresh"), "Retry"),
  ];
}
