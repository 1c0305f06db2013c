/** A tool call: what it was given, what it gave back, how long it took. */

import { formatDuration, formatJson, formatTime } from "../format.js";
import { toolName } from "../reducer.js";
import { fill, h } from "./dom.js";
import { section } from "./fold.js";
import { icon } from "./icons.js";

/** @import { ToolPart } from "../types.js" */

const STATES = {
  "input-streaming": { class: "running", says: "Preparing" },
  "input-available": { class: "running", says: "Running" },
  "approval-requested": { class: "running", says: "Waiting for approval" },
  "approval-responded": { class: "running", says: "Answered" },
  "output-available": { class: "done", says: "Done" },
  "output-error": { class: "failed", says: "Failed" },
  "output-denied": { class: "denied", says: "Denied" },
};

export class ToolCard {
  #state = h("span", { class: "tool-state" });
  #name = h("span", { class: "tool-name" });
  #preview = h("span", { class: "tool-preview" });
  #verdict = h("span", { class: "tool-verdict" });
  #time = h("span", { class: "tool-time" });
  #body = h("div", { class: "fold-body" });
  #shown = "";
  element = h(
    "details",
    { class: "tool" },
    h("summary", {}, this.#state, this.#name, this.#preview, this.#verdict, this.#time, icon("chevron")),
    this.#body,
  );

  /** @param {ToolPart} part */
  update(part) {
    const input = part.input !== undefined ? formatJson(part.input) : (part.rawInput ?? part.inputText ?? "");
    const shown = JSON.stringify([part.toolCallId, part.state, input, part.durationMs, part.errorDetail, part.approval]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const state = STATES[part.state] ?? STATES["input-available"];
    this.element.className = `tool ${state.class}`;
    fill(this.#state, stateIcon(state.class), h("span", { class: "sr-only" }, `Tool, ${state.says}:`));
    this.#name.textContent = toolName(part);
    this.#preview.textContent = preview(part);
    this.#verdict.textContent = verdict(part);
    this.#time.textContent = part.durationMs === undefined || state.class === "denied" ? "" : formatDuration(part.durationMs);
    fill(this.#body, section("Input", input), ...result(part));
    if (state.class === "failed") this.element.open = true;
  }
}

/** @param {ToolPart} part */
function result(part) {
  if (part.state === "output-error")
    return [section("Error", part.errorDetail ?? part.errorText ?? "The tool failed.", "error")];
  if (part.state === "output-denied") return [section("Denied", part.approval?.reason ?? "The call was not run.")];
  return part.state === "output-available" ? [section("Output", formatJson(part.output))] : [];
}

/** Who decided, and when. @param {ToolPart} part */
function verdict({ approval, state }) {
  if (approval?.approved === undefined || !approval.answeredAt) return state === "output-denied" ? "Denied" : "";
  const who = { user: " by you", other: " by somebody else" }[approval.answeredBy ?? ""] ?? "";
  return `${approval.approved ? "Approved" : "Denied"}${who}, ${formatTime(new Date(approval.answeredAt))}`;
}

/** The arguments in one line. @param {ToolPart} part */
function preview(part) {
  const { input } = part;
  if (input === null || typeof input !== "object") return "";
  return Object.values(input)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .join(", ");
}

/** @param {string} state */
function stateIcon(state) {
  if (state === "running") return h("span", { class: "spinner" });
  return icon(state === "done" ? "check" : state === "denied" ? "close" : "alert");
}
