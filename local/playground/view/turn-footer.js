/** Under an answer: how it ended, what it took, and what can be done with it. */

import { formatCount, formatDuration } from "../format.js";
import { textOf } from "../reducer.js";
import { copyButton } from "./copy.js";
import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { thumbs } from "./thumbs.js";
import { Waterfall } from "./waterfall.js";

/** @import { Feedback, Message, Metadata, Span, ToolPart } from "../types.js" */
/** @import { CallAnswer } from "../conversation.js" */

const ENDINGS = {
  waiting: "Waiting for you",
  unanswered: "Not answered",
  expired: "Expired",
  cancelled: "Stopped",
  interrupted: "Interrupted",
  deadline: "Out of time",
  length: "Cut off at the length limit",
};

/**
 * @typedef {object} TurnActions
 * @property {() => void} regenerate
 * @property {(part: ToolPart, answer: CallAnswer) => Promise<void>} answer Answers what a turn waits for.
 * @property {(message: Message, feedback: Feedback | null) => Promise<void>} rate
 * @property {((turn: number) => Promise<Span[]>) | null} traces Null where none are recorded.
 */

export class TurnFooter {
  #facts = h("div", { class: "facts" });
  #buttons = h("div", { class: "turn-buttons" });
  #trace = h("div");
  element = h(
    "footer",
    { class: "turn-footer" },
    h("div", { class: "turn-row" }, this.#facts, this.#buttons),
    this.#trace,
  );
  #actions;

  /** @param {TurnActions} actions */
  constructor(actions) {
    this.#actions = actions;
  }

  /** @param {Message} message @param {{ last: boolean }} place */
  update(message, { last }) {
    const { traces, regenerate, rate } = this.#actions;
    const turn = message.metadata.turnNumber;
    fill(this.#facts, ...facts(message.metadata));
    fill(
      this.#buttons,
      copyButton(() => textOf(message), "Copy answer"),
      ...thumbs(message, rate),
      last && !["failed", "waiting"].includes(message.metadata.status ?? "") && button("refresh", "Regenerate", regenerate),
      traces && turn !== undefined && this.#traceButton(() => traces(turn)),
    );
  }

  /** @param {() => Promise<Span[]>} load */
  #traceButton(load) {
    const shown = this.#trace.hasChildNodes();
    const made = button("waterfall", "Trace", () => {
      const open = !this.#trace.hasChildNodes();
      fill(this.#trace, open && new Waterfall(load).element);
      made.setAttribute("aria-expanded", String(open));
    });
    made.setAttribute("aria-expanded", String(shown));
    return made;
  }
}

/** @param {Metadata} metadata */
function facts(metadata) {
  const { status, finishReason, abortReason, stopReason, firstTokenMs, durationMs, usage, model, stepCount } = metadata;
  const how = [abortReason, stopReason, status, finishReason].find((reason) => reason && reason in ENDINGS);
  const ending = ENDINGS[/** @type {keyof typeof ENDINGS} */ (how)];
  return [
    ending && h("span", { class: status === "waiting" ? "badge waiting" : "badge" }, ending),
    firstTokenMs !== undefined && fact("First token", formatDuration(firstTokenMs), "Time to the first token"),
    durationMs !== undefined && fact("Total", formatDuration(durationMs), "Duration of the turn"),
    usage && fact("Tokens", `${input(usage)}, ${formatCount(usage.outputTokens)} out`, tokens(usage)),
    model && h("span", { class: "fact model", title: `${stepCount ?? 1} model calls` }, model),
  ];
}

/** @param {string} label @param {string} value @param {string} title */
function fact(label, value, title) {
  return h("span", { class: "fact", title }, h("span", { class: "fact-label" }, `${label} `), value);
}

/** The input, and the share of it that the model's prompt cache had. @param {import("../types.js").Usage} usage */
function input({ inputTokens, cachedInputTokens = 0 }) {
  const share = Math.round((100 * cachedInputTokens) / inputTokens);
  return `${formatCount(inputTokens)} in${share ? ` (${share}% cached)` : ""}`;
}

/** @param {import("../types.js").Usage} usage */
function tokens({ totalTokens, cachedInputTokens = 0, cacheWriteTokens = 0, reasoningTokens = 0 }) {
  const all = `${formatCount(totalTokens)} tokens`;
  const cache = `${formatCount(cachedInputTokens)} read from the cache, ${formatCount(cacheWriteTokens)} written to it`;
  return `${all}, ${cache}, ${formatCount(reasoningTokens)} for reasoning`;
}

/** @param {Parameters<typeof icon>[0]} name @param {string} label @param {() => void} click */
function button(name, label, click) {
  return h("button", { type: "button", class: "small-button", click }, icon(name), label);
}
