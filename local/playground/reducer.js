/** From stream events to a message: the same shape that the sessions API stores and returns. */

/** @import { CallAnswer } from "./conversation.js" */
/** @import { Message, Part, SourcePart, StreamEvent, ToolPart } from "./types.js" */

const UNANSWERED = "Nobody replied before the conversation continued. The call was not run.";

/** Builds one answer out of its events. */
export class AnswerBuilder {
  /** @type {Message | null} */
  message = null;
  /** @type {string | null} The public text of what went wrong. */
  error = null;
  finished = false;
  /** @type {Record<string, any> | null} What `data-session` told. */
  session = null;
  /** @type {Map<string, Extract<Part, { text: string }>>} */
  #blocks = new Map();
  /** @type {Map<string, ToolPart>} */
  #calls = new Map();

  /** @param {Message | null} [continued] The answer that goes on. */
  constructor(continued = null) {
    this.message = continued;
    for (const part of continued?.parts ?? []) if (isTool(part)) this.#calls.set(part.toolCallId, part);
  }

  /** @param {StreamEvent} event */
  apply(event) {
    if (event.type === "start") this.#start(event);
    else if (event.type === "finish") this.#finish(event);
    else if (event.type === "abort") this.#metadata({ abortReason: event.reason });
    else if (event.type === "error") this.error = event.errorText;
    else if (event.type === "data-session") this.session = event.data;
    else if (event.type === "data-approval-response") this.#decided(event.data);
    else if (event.type === "start-step") this.#add({ type: "step-start" });
    else if (event.type.startsWith("source-")) this.#add(/** @type {SourcePart} */ ({ ...event }));
    else if (event.type.startsWith("tool-")) this.#tool(event);
    else if (/^(text|reasoning)-/.test(event.type)) this.#block(event);
  }

  /** @param {StreamEvent} event */
  #start(event) {
    if (this.message?.id === event.messageId) return this.#metadata(event.messageMetadata ?? {});
    this.message = { id: event.messageId, role: "assistant", parts: [], metadata: event.messageMetadata ?? {} };
  }

  /** @param {StreamEvent} event */
  #finish(event) {
    this.finished = true;
    this.#metadata({ finishReason: event.finishReason, ...event.messageMetadata });
    if (this.message) markWaiting(this.message);
  }

  /** @param {object} changes */
  #metadata(changes) {
    if (this.message) Object.assign(this.message.metadata, changes);
  }

  /**
   * @template {Part} P
   * @param {P} part
   */
  #add(part) {
    this.message?.parts.push(part);
    return part;
  }

  /** @param {StreamEvent} event */
  #block(event) {
    const [kind, phase] = /** @type {["text" | "reasoning", string]} */ (event.type.split("-"));
    const key = `${kind}:${event.id}`;
    if (phase === "start") this.#blocks.set(key, this.#add({ type: kind, text: "", state: "streaming", startedAt: performance.now() }));
    const block = this.#blocks.get(key);
    if (!block) return;
    if (phase === "delta") block.text += event.delta;
    if (phase === "end") Object.assign(block, { state: "done", durationMs: performance.now() - (block.startedAt ?? 0) });
  }

  /** @param {StreamEvent} event */
  #tool(event) {
    const call = this.#calls.get(event.toolCallId) ?? this.#newCall(event);
    switch (event.type) {
      case "tool-input-delta":
        call.inputText += event.inputTextDelta;
        break;
      case "tool-input-available":
        Object.assign(call, { state: "input-available", input: event.input });
        break;
      case "tool-input-error":
        Object.assign(call, { state: "output-error", rawInput: event.input, errorText: event.errorText });
        break;
      case "tool-approval-request":
        Object.assign(call, {
          state: "approval-requested",
          approval: { id: event.approvalId, requestReason: event.reason },
        });
        break;
      case "tool-output-denied":
        call.state = "output-denied";
        break;
      case "tool-output-available":
        Object.assign(call, { state: "output-available", output: event.output });
        break;
      case "tool-output-error":
        Object.assign(call, { state: "output-error", errorText: event.errorText });
    }
    if (call.state.startsWith("output")) delete call.waits;
  }

  /** What somebody has decided, maybe in another tab. @param {Record<string, any>} verdict */
  #decided({ toolCallId, approved, reason }) {
    const call = this.#calls.get(toolCallId);
    const answeredAt = call?.approval?.answeredAt ?? new Date().toISOString();
    if (call?.approval) Object.assign(call, { approval: { ...call.approval, approved, reason, answeredAt } });
    if (call?.state === "approval-requested") call.state = "approval-responded";
  }

  /** @param {StreamEvent} event */
  #newCall(event) {
    /** @type {ToolPart} */
    const call = {
      type: `tool-${event.toolName}`,
      toolCallId: event.toolCallId,
      state: "input-streaming",
      inputText: "",
    };
    this.#calls.set(event.toolCallId, call);
    return this.#add(call);
  }
}

/**
 * @param {Part} part
 * @returns {part is ToolPart}
 */
export function isTool(part) {
  return part.type.startsWith("tool-") || part.type === "dynamic-tool";
}

/** Mark the calls that the client has to run, those that an answer is still waiting with, and who decided the others. @param {Message} message */
export function markWaiting(message) {
  const { status, decisions = {} } = message.metadata;
  for (const part of message.parts.filter(isTool)) {
    part.waits = status === "waiting" && part.state === "input-available";
    const decision = decisions[part.toolCallId];
    if (!decision) continue;
    // A stream of AI SDK 6 leaves out a request that was approved before it began.
    part.approval ??= { id: "", approved: part.state !== "output-denied" };
    Object.assign(part.approval, { answeredAt: decision.at, answeredBy: decision.by });
  }
  return message;
}

/** Show what an answer had waited for as not answered: the conversation goes on without. @param {Message} message */
export function closeUnanswered(message) {
  if (message.metadata.status !== "waiting") return;
  for (const part of message.parts) {
    if (!isTool(part)) continue;
    if (part.waits) Object.assign(part, { state: "output-error", errorText: UNANSWERED });
    if (part.state === "approval-requested")
      Object.assign(part, { state: "output-denied", approval: { ...part.approval, approved: false, reason: UNANSWERED } });
  }
  Object.assign(message.metadata, { status: "cancelled", stopReason: "unanswered" });
  markWaiting(message);
}

/** What of an answer changes while it waits. @param {Message} message */
export function statesOf(message) {
  return JSON.stringify(message.parts.map((part) => /** @type {{ state?: string }} */ (part).state));
}

/** @param {ToolPart & { toolName?: string }} part */
export function toolName(part) {
  return part.toolName ?? part.type.replace(/^tool-/, "");
}

/**
 * The text of a message, without reasoning and tools.
 * @param {Message} message
 */
export function textOf(message) {
  return message.parts.map((part) => (part.type === "text" ? /** @type {any} */ (part).text : "")).join("");
}

/** Whether the last message is not the one that is shown, or waits for something else. @param {Message | undefined} last @param {Message} shown */
export function isOther(last, shown) {
  return last?.id !== shown.id || (shown.metadata.status === "waiting" && statesOf(last) !== statesOf(shown));
}

/** How much there is to see of an answer. @param {Message | undefined} message */
export function sizeOf(message) {
  return (message?.parts ?? []).reduce((size, part) => size + 1 + (/** @type {{ text?: string }} */ (part).text?.length ?? 0), 0);
}

/** Show an answer that is kept until the others of its step are there. @param {ToolPart} part @param {CallAnswer} answer */
export function settle(part, answer) {
  if ("approved" in answer)
    part.approval = { id: "", ...part.approval, ...answer, answeredAt: new Date().toISOString(), answeredBy: "user" };
  if ("approved" in answer) part.state = answer.approved ? "approval-responded" : "output-denied";
  if ("output" in answer) Object.assign(part, { state: "output-available", output: answer.output, waits: false });
  if ("error" in answer) Object.assign(part, { state: "output-error", errorText: answer.error, waits: false });
}
