/** One answer on the page. */

import { isTool } from "../reducer.js";
import { h } from "./dom.js";
import { kindOf } from "./part-views.js";
import { TurnFooter } from "./turn-footer.js";
import { errorOf } from "./waterfall.js";

/** @import { Message, Part } from "../types.js" */
/** @import { PartKind, PartView } from "./part-views.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/** @typedef {{ last: boolean, streaming: boolean, busy: boolean }} Place */

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
    const shown = JSON.stringify([place.last, place.streaming, message.metadata, states, this.#actions.traces !== null, this.#actions.isFree]);
    if (shown === this.#shown && message === this.#message && !place.streaming) return;
    this.#shown = shown;
    this.#message = message;
    this.#showParts(message, place);
    this.element.classList.toggle("streaming", place.streaming);
    this.element.setAttribute("aria-busy", String(place.streaming));
    if (place.streaming || isRefusal(message, place)) return this.#footer.element.remove();
    this.#footer.update(message, place);
    this.element.append(this.#footer.element);
    void this.#fillFromTrace(message, place);
  }

  /** How long a stored call took, and what a failed one told the model, only its span says. @param {Message} message @param {Place} place */
  async #fillFromTrace(message, place) {
    const { traces } = this.#actions;
    const turn = message.metadata.turnNumber;
    // One that waits for approval has a span already, and another one when it runs.
    const calls = message.parts.filter(isTool).filter(({ state }) => state.startsWith("output-"));
    const known = calls.every((call) => call.durationMs !== undefined && call.state !== "output-error");
    if (!traces || turn === undefined || known) return;
    const spans = await traces(turn);
    if (message !== this.#message) return;
    for (const call of calls) {
      const found = spans.filter(({ attributes }) => attributes["tool.id"] === call.toolCallId);
      const span = found.at(-1);
      if (!span || (call.approval?.approved && found.length === 1)) continue; // the span of its run is not there yet
      call.durationMs ??= span.duration_ms;
      call.errorDetail = errorOf(span) || undefined;
    }
    this.#showParts(message, place);
  }

  /** @param {Message} message @param {Place} place */
  #showParts(message, place) {
    const shown = message.parts.filter(kindOf);
    if (isRefusal(message, place)) shown.pop();
    for (const { view } of this.#parts.splice(shown.length)) view.element.remove();
    shown.forEach((part, index) => this.#viewOf(part, index).update(part));
  }

  /** @param {Part} part @param {number} index */
  #viewOf(part, index) {
    const kind = /** @type {PartKind} */ (kindOf(part));
    const known = this.#parts[index];
    if (known?.kind === kind) return known.view;
    const view = kind.make(this.#actions);
    const hadFocus = known?.view.element.contains(document.activeElement);
    if (known) known.view.element.replaceWith(view.element);
    else this.#body.append(view.element);
    if (hadFocus) this.#actions.focus(); // whoever answered a card writes on in the field
    this.#parts[index] = { kind, view };
    return view;
  }
}

/** Whether an answer failed: its last words are the agent's apology, and the card below says why. @param {Message} message @param {Place} place */
function isRefusal({ metadata, parts }, { last, streaming }) {
  return metadata.status === "failed" && last && !streaming && parts.at(-1)?.type === "text";
}
