/** Everything that waits for this user: a number in the header, and the list in the panel. */

import { argumentsOf } from "./arguments.js";
import { byId, fill, h } from "./dom.js";

/** @import { Api } from "../api.js" */
/** @import { Request } from "../types.js" */

/** Requests of other users are not announced to this page. */
const LOOK_MS = 3_000;

export class InboxView {
  #chip = byId("inbox-chip");
  #panel = byId("inbox-panel");
  #api;
  #onDecided;
  /** @type {Map<string, { request: Request, element: HTMLElement }>} */
  #cards = new Map();

  /**
   * @param {() => Api} api
   * @param {{ show: () => void, decided: (request: Request) => void }} actions
   */
  constructor(api, { show, decided }) {
    this.#api = api;
    this.#onDecided = decided;
    this.#chip.addEventListener("click", show);
    setInterval(() => this.#panel.checkVisibility() && document.visibilityState === "visible" && this.refresh(), LOOK_MS);
  }

  async refresh() {
    const api = this.#api();
    const requests = await api.requests().catch(() => null); // the next look may succeed
    if (requests && api === this.#api()) this.#show(requests);
  }

  /** @param {Request[]} requests */
  #show(requests) {
    this.#chip.hidden = !requests.length;
    fill(this.#chip, String(requests.length), h("span", {}, requests.length === 1 ? " waits for you" : " wait for you"));
    const kept = new Set(requests.map(({ id }) => id));
    for (const id of [...this.#cards.keys()]) if (!kept.has(id)) this.#cards.delete(id);
    for (const request of requests)
      if (!this.#cards.has(request.id)) this.#cards.set(request.id, { request, element: this.#card(request) });
    const cards = requests.map(({ id }) => /** @type {HTMLElement} */ (this.#cards.get(id)?.element));
    const same = cards.length === this.#panel.children.length && cards.every((card, index) => card === this.#panel.children[index]);
    if (same && cards.length) return;
    fill(this.#panel, ...cards, !cards.length && h("p", { class: "quiet" }, "Nothing waits for you."));
  }

  /** @param {Request} request */
  #card(request) {
    const { kind, tool, reason, user, sessionId, input } = request;
    const error = h("p", { class: "request-error", role: "alert" });
    const decide = async (/** @type {boolean} */ approved) => {
      try {
        await this.#api().decide(request.id, { approved });
        this.#onDecided(request);
        await this.refresh();
        this.#panel.focus(); // the card that had it is gone
      } catch (refusal) {
        error.textContent = /** @type {Error} */ (refusal).message;
      }
    };
    return h(
      "article",
      { class: "request", "aria-label": `${tool} of ${user}` },
      h("strong", {}, kind === "approval" ? `Allow ${tool}?` : `${tool} waits for an answer`),
      h("p", { class: "quiet" }, sessionId ? "In a chat of yours" : `Asked by ${user.replace(/^local:/, "")}`),
      reason && h("p", {}, reason),
      argumentsOf(input),
      h(
        "div",
        { class: "request-buttons" },
        kind === "approval" && h("button", { type: "button", class: "small-button primary", click: () => decide(true) }, "Approve"),
        kind === "approval" && h("button", { type: "button", class: "small-button", click: () => decide(false) }, "Deny"),
        sessionId && h("a", { class: "small-button", href: `#/chat/${sessionId}` }, "Open chat"),
      ),
      error,
    );
  }
}
