/** Under an answer: how it ended, what it took, and what can be done with it. */

import { formatCents, formatCount, formatDuration } from "../format.js";
import { costOf } from "../prices.js";
import { textOf } from "../reducer.js";
import { copyButton } from "./copy.js";
import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { thumbs } from "./thumbs.js";
import { versions } from "./versions.js";
import { Waterfall } from "./waterfall.js";

/** @import { Feedback, Message, Metadata, Span, ToolPart } from "../types.js" */
/** @import { CallAnswer } from "../conversation.js" */

const ENDINGS = {
  waiting: "Waiting for you",
  unanswered: "Not answered",
  expired: "Expired",
  failed: "Failed",
  cancelled: "Stopped",
  interrupted: "Interrupted",
  deadline: "Out of time",
  length: "Cut off at the length limit",
};

/** What somebody wanted, or waits for, is no error. @type {Record<string, string>} */
const CALM = { waiting: "waiting", cancelled: "calm", unanswered: "calm", expired: "calm" };

/**
 * @typedef {object} TurnActions
 * @property {(message: Message) => void} regenerate
 * @property {(message: Message, text: string) => void} rewrite Asks a question in other words.
 * @property {(nodeId: string) => void} switchBranch
 * @property {(part: ToolPart, answer: CallAnswer) => Promise<void>} answer Answers what a turn waits for.
 * @property {(message: Message, feedback: Feedback | null) => Promise<void>} rate
 * @property {(message: Message) => void} saveAsTest
 * @property {boolean} isFree The offline model answers: its tokens have no price.
 * @property {() => void} focus Puts the focus into the field to write in.
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
    const { traces, regenerate, rate, saveAsTest } = this.#actions;
    const { turnNumber: turn, status = "", nodeId } = message.metadata;
    this.element.classList.toggle("last", last);
    fill(this.#facts, versions(message, this.#actions.switchBranch), badge(message.metadata), this.#figure(message.metadata, traces && turn !== undefined ? () => traces(turn) : null));
    const isAnswer = textOf(message) !== "" && status !== "failed";
    fill(
      this.#buttons,
      isAnswer && copyButton(() => textOf(message), "Copy answer"),
      ...(isAnswer && status !== "waiting" ? thumbs(message, rate) : []),
      (last || nodeId) && !["failed", "waiting"].includes(status) && button("refresh", "Regenerate", () => regenerate(message)),
      traces && status === "complete" && button("beaker", "Save as test", () => saveAsTest(message)),
    );
  }

  /** What the turn took, in one line, which opens its trace. @param {Metadata} metadata @param {(() => Promise<Span[]>) | null} load */
  #figure(metadata, load) {
    const text = figure(metadata, this.#actions.isFree);
    const title = details(metadata);
    if (!load) return text && h("span", { class: "figure", title }, text);
    const open = () => {
      const isOpen = !this.#trace.hasChildNodes();
      fill(this.#trace, isOpen && new Waterfall(load).element);
      made.setAttribute("aria-expanded", String(isOpen));
    };
    const shown = String(this.#trace.hasChildNodes());
    const made = h(
      "button",
      { type: "button", class: "figure small-button", title, "aria-expanded": shown, click: open },
      h("span", { class: "sr-only" }, "Trace: "),
      text || "no figures",
      icon("chevron"),
    );
    return made;
  }
}

/** @param {Metadata} metadata */
function badge({ status, finishReason, abortReason, stopReason }) {
  const how = [abortReason, stopReason, status, finishReason].find((reason) => reason && reason in ENDINGS) ?? "";
  const ending = ENDINGS[/** @type {keyof typeof ENDINGS} */ (how)];
  return ending && h("span", { class: `badge ${CALM[how] ?? ""}` }, ending);
}

/** @param {Metadata} metadata @param {boolean} isFree */
function figure({ durationMs, usage, model }, isFree) {
  const cents = usage && model && !isFree ? costOf(model, usage) : null;
  return [
    durationMs !== undefined && formatDuration(durationMs),
    usage?.totalTokens && `${formatCount(usage.totalTokens)} tokens${cached(usage)}`,
    cents !== null && formatCents(cents),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** The share of the input that the model's prompt cache had. @param {import("../types.js").Usage} usage */
function cached({ inputTokens, cachedInputTokens = 0 }) {
  const share = Math.round((100 * cachedInputTokens) / inputTokens);
  return share ? ` (${share}% cached)` : "";
}

/** @param {Metadata} metadata */
function details({ firstTokenMs, usage, model, stepCount = 1 }) {
  const { inputTokens = 0, outputTokens = 0, cachedInputTokens = 0, cacheWriteTokens = 0, reasoningTokens = 0 } = usage ?? {};
  return [
    firstTokenMs !== undefined && `first token after ${formatDuration(firstTokenMs)}`,
    usage && `${formatCount(inputTokens)} tokens in (${formatCount(cachedInputTokens)} read from the cache, ${formatCount(cacheWriteTokens)} written to it)`,
    usage && `${formatCount(outputTokens)} out (${formatCount(reasoningTokens)} for reasoning)`,
    model && `${stepCount} ${stepCount === 1 ? "call" : "calls"} of ${model}`,
  ]
    .filter(Boolean)
    .join(", ");
}

/** @param {Parameters<typeof icon>[0]} name @param {string} label @param {() => void} click */
function button(name, label, click) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, click }, icon(name));
}
