/** One message on the page. */

import { isTool, textOf } from "../reducer.js";
import { h } from "./dom.js";
import { kindOf } from "./part-views.js";
import { TurnFooter } from "./turn-footer.js";
import { errorOf } from "./waterfall.js";

/** @import { Message, Part } from "../types.js" */
/** @import { PartKind, PartView } from "./part-views.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** @typedef {{ last: boolean, streaming: boolean }} Place */

/** The user's own words, as they were typed. */
export class QuestionView {
  element = h("article", { class: "message question", "aria-label": "You" });

  /** @param {Message} message */
  update(message) {
    this.element.textContent = textOf(message);
  }
}

/** An answer: its parts in order, then the footer once it is complete. */
export class AnswerView {
  element = h("article", { class: "message answer", "aria-label": "Assistant" });
  #body = h("div", { class: "answer-body" });
  /** @type {{ kind: PartKind, view: PartView }[]} */
  #parts = [];
  #actions;
  #footer;
  #shown = "";
  /** @type {Message | null} */
  #message = null;

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#footer = new TurnFooter(actions);
    this.element.append(this.#body);
  }

  /** @param {Message} message @param {Place} place */
  update(message, place) {
    const states = message.parts.map((part) => /** @type {{ state?: string }} */ (part).state);
    const shown = JSON.stringify([place, message.metadata, states, this.#actions.traces !== null]);
    if (shown === this.#shown && message === this.#message && !place.streaming) return;
    this.#shown = shown;
    this.#message = message;
    this.#showParts(message);
    this.element.classList.toggle("streaming", place.streaming);
    this.element.setAttribute("aria-busy", String(place.streaming));
    if (place.streaming) return this.#footer.element.remove();
    this.#footer.update(message, place);
    this.element.append(this.#footer.element);
    void this.#fillFromTrace(message);
  }

  /** How long a stored call took, and what a failed one told the model, only its span says. @param {Message} message */
  async #fillFromTrace(message) {
    const { traces } = this.#actions;
    const turn = message.metadata.turnNumber;
    const calls = message.parts.filter(isTool);
    const known = calls.every((call) => call.durationMs !== undefined && call.state !== "output-error");
    if (!traces || turn === undefined || known) return;
    const spans = await traces(turn);
    if (message !== this.#message) return;
    for (const call of calls) {
      const span = spans.find(({ attributes }) => attributes["tool.id"] === call.toolCallId);
      if (!span) continue;
      call.durationMs ??= span.duration_ms;
      call.errorDetail = errorOf(span) || undefined;
    }
    this.#showParts(message);
  }

  /** @param {Message} message */
  #showParts({ parts }) {
    const shown = parts.filter(kindOf);
    for (const { view } of this.#parts.splice(shown.length)) view.element.remove();
    shown.forEach((part, index) => this.#viewOf(part, index).update(part));
  }

  /** @param {Part} part @param {number} index */
  #viewOf(part, index) {
    const kind = /** @type {PartKind} */ (kindOf(part));
    const known = this.#parts[index];
    if (known?.kind === kind) return known.view;
    const view = kind.make(this.#actions);
    if (known) known.view.element.replaceWith(view.element);
    else this.#body.append(view.element);
    this.#parts[index] = { kind, view };
    return view;
  }
}
