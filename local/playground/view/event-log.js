/** The events as they came off the wire, for whoever builds a client. */

import { byId, fill, h } from "./dom.js";
import { copyButton } from "./copy.js";

/** @import { Conversation, Logged } from "../conversation.js" */

export class EventLogView {
  #panel = byId("events-panel");
  #rows = h("ol", { class: "event-rows", "aria-label": "Events", tabindex: 0 });
  #count = h("span", { class: "quiet" });
  #deltas = h("input", { type: "checkbox", id: "show-deltas", checked: true, change: () => this.#restart() });
  /** @type {Conversation | null} */
  #conversation = null;
  /** @type {Logged | undefined} The last one that is shown. */
  #last;

  constructor() {
    const copy = copyButton(
      () => JSON.stringify(this.#conversation?.log.map(({ event }) => event) ?? [], null, 2),
      "Copy all events",
    );
    const label = h("label", { for: "show-deltas" }, this.#deltas, "Deltas");
    fill(this.#panel, h("div", { class: "panel-heading" }, this.#count, label, copy), this.#rows);
  }

  /** @param {Conversation} conversation */
  open(conversation) {
    this.#conversation = conversation;
    this.#restart();
  }

  /** Add what is new. While nobody looks, nothing is added. */
  update() {
    const log = this.#conversation?.log ?? [];
    if (this.#panel.hidden || !this.#panel.offsetParent) return;
    const from = this.#last ? log.lastIndexOf(this.#last) + 1 : 0;
    const added = log.slice(from).filter(({ event }) => this.#deltas.checked || !event.type.endsWith("-delta"));
    const atEnd = this.#rows.scrollHeight - this.#rows.scrollTop - this.#rows.clientHeight < 40;
    this.#rows.append(...added.map(row));
    this.#last = log.at(-1);
    this.#count.textContent = log.length ? `${log.length} ${log.length === 1 ? "event" : "events"}` : "No events yet";
    if (atEnd) this.#rows.scrollTop = this.#rows.scrollHeight;
  }

  #restart() {
    fill(this.#rows);
    this.#last = undefined;
    this.update();
  }
}

/** @param {Logged} logged */
function row({ at, event }) {
  const { type, ...rest } = event;
  return h(
    "li",
    {},
    h("span", { class: "event-time" }, `${(at / 1000).toFixed(2)} s`),
    h("span", { class: "event-type" }, type),
    h("code", {}, JSON.stringify(rest)),
  );
}
