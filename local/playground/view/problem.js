/** What went wrong with the last turn, and the way on. */

import { BUSY, NOT_LOADED } from "../problems.js";
import { causesOf } from "./causes.js";
import { fill, h } from "./dom.js";
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
  #title = h("strong");
  #detail = h("span", { class: "problem-detail" });
  #wait = h("span", { class: "problem-wait" });
  #log = h("div", { class: "problem-causes" });
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  element;

  /**
   * @param {Problem} problem
   * @param {ProblemActions} actions
   */
  constructor(problem, actions) {
    this.#countDown(problem.retryAt);
    fill(this.#title, problem.title);
    fill(this.#detail, ...withCode(problem.detail));
    void this.#explain(problem);
    this.element = h(
      "div",
      { class: "problem", role: "alert" },
      icon("alert"),
      h(
        "div",
        { class: "problem-text" },
        this.#title,
        this.#detail,
        this.#wait,
        this.#log,
      ),
      h("div", { class: "problem-buttons" }, ...buttons(problem, actions)),
    );
  }

  close() {
    clearInterval(this.#timer);
    this.element.remove();
  }

  /** Put the cause first, where it is known: what to do about it, then what was said. @param {Problem} problem */
  async #explain({ title, requestId, code }) {
    const causes = await causesOf(requestId);
    const known = causes.find(({ advice }) => advice) ?? causes.at(-1);
    if (known && code !== NOT_LOADED) {
      const cause = known.cause || known.message;
      fill(this.#title, known.advice || title);
      fill(this.#detail, known.advice ? `${title}: ${cause}` : cause);
    }
    const tracebacks = causes.map(({ traceback }) => traceback).filter(Boolean);
    fill(
      this.#log,
      requestId && !requestId.startsWith("start-") && h("small", {}, "Request id ", h("code", {}, requestId)),
      ...tracebacks.map((text) => h("details", {}, h("summary", {}, "Traceback"), h("pre", { tabindex: "0" }, text))),
    );
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

/** What was said, and below it the line of code that it is about. @param {string} detail */
export function withCode(detail) {
  const [said, ...code] = detail.split("\n");
  return [said, code.length > 0 && h("code", { class: "problem-code" }, code.join("\n"))];
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
