/** The context window: a gauge in the header, the details and the summary in the panel. */

import { contextUse } from "../context-window.js";
import { formatCount, formatDay, formatShort } from "../format.js";
import { MarkdownView } from "../markdown/view.js";
import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { ContextUse } from "../context-window.js" */
/** @import { Message, StackInfo, Summary } from "../types.js" */

/**
 * @typedef {object} ContextState
 * @property {Message[]} messages
 * @property {Summary | null} summary
 * @property {boolean} rebuilding
 * @property {StackInfo | null} info
 */

export class ContextView {
  /** @type {HTMLButtonElement} */
  #chip = byId("context-chip");
  #panel = byId("context-panel");
  #text = new MarkdownView();
  #rebuild;

  /** @param {{ rebuildSummary: () => void }} actions */
  constructor({ rebuildSummary }) {
    this.#rebuild = h("button", { type: "button", class: "small-button", click: rebuildSummary });
  }

  /** @param {ContextState} state */
  update({ messages, summary, rebuilding, info }) {
    const use = contextUse(messages, summary);
    this.#chip.hidden = !messages.length;
    const tokens = limited(use.tokens + use.summaryTokens, info?.context_max_tokens, formatShort);
    const begins = info ? ` It is full at ${formatCount(info.window_tokens)}.` : "";
    this.#chip.setAttribute("aria-label", `Context window: ${tokens} tokens.${begins} Open the details`);
    fill(this.#chip, info && gauge(use, info), h("span", {}, tokens));
    fill(this.#rebuild, icon("refresh"), rebuilding ? "Writing…" : summary ? "Rebuild" : "Summarise now");
    this.#rebuild.disabled = rebuilding || !messages.length;
    fill(this.#panel, this.#figures(use, info), this.#summary(summary));
  }

  /** @param {ContextUse} use @param {StackInfo | null} info */
  #figures(use, info) {
    const rows = [
      ["recent", "Recent turns", limited(use.tokens, info?.context_max_tokens, formatCount)],
      ["summary", "Summary", formatCount(use.summaryTokens)],
      ["", "Turns since the summary", formatCount(use.turns)],
    ];
    return h(
      "section",
      { class: "panel-section" },
      h("h2", {}, "Context window"),
      info && gauge(use, info),
      info &&
        h(
          "p",
          { class: "gauge-note" },
          `At ${formatCount(info.window_tokens)} tokens or ${info.context_max_turns} turns, a summary replaces the older half.`,
        ),
      h(
        "dl",
        { class: "figures" },
        ...rows.flatMap(([key, label, value]) => [
          h("dt", { class: key && `key kind-${key}` }, label),
          h("dd", {}, value),
        ]),
      ),
    );
  }

  /** @param {Summary | null} summary */
  #summary(summary) {
    if (summary) this.#text.update(summary.content);
    const covers =
      summary && `Everything up to turn ${summary.endTurnNumber} · ${formatDay(new Date(summary.createdAt))}`;
    return h(
      "section",
      { class: "panel-section summary" },
      h("div", { class: "panel-heading" }, h("h2", {}, "Summary"), this.#rebuild),
      covers && h("p", { class: "quiet" }, covers),
      summary
        ? this.#text.element
        : h("p", { class: "quiet" }, "There is no summary yet. The model reads every turn in full."),
    );
  }
}

/**
 * A bar of what the model reads, with a mark where the window is full.
 * @param {ContextUse} use
 * @param {StackInfo} info
 */
function gauge(use, info) {
  const bar = h("span", { class: "gauge", "aria-hidden": "true" });
  for (const [kind, tokens] of /** @type {const} */ ([
    ["summary", use.summaryTokens],
    ["recent", use.tokens],
  ])) {
    if (!tokens) continue;
    const fillOf = h("span", { class: `gauge-fill kind-${kind}` });
    fillOf.style.width = percent(tokens, info.context_max_tokens);
    bar.append(fillOf);
  }
  const mark = h("span", { class: "gauge-mark" });
  mark.style.insetInlineStart = percent(info.window_tokens, info.context_max_tokens);
  bar.append(mark);
  return bar;
}

/** @param {number} part @param {number} whole */
function percent(part, whole) {
  return `${Math.min(100, (100 * part) / whole)}%`;
}

/** @param {number} count @param {number | undefined} limit @param {(count: number) => string} format */
function limited(count, limit, format) {
  return limit ? `${format(count)} / ${format(limit)}` : format(count);
}
