/** How full the model's context is: the server's own estimate (`omniagent.session.context`), made on this page. */

import { isTool, toolName } from "./reducer.js";

/** @import { Message, Part, Summary } from "./types.js" */

/**
 * @typedef {object} ContextUse
 * @property {number} tokens What the model is shown besides its instructions.
 * @property {number} turns Turns since the summary.
 * @property {number} summaryTokens
 * @property {number} summarizedTo The last turn that the summary covers; 0 without one.
 */

/**
 * @param {Message[]} messages
 * @param {Summary | null} summary
 * @returns {ContextUse}
 */
export function contextUse(messages, summary) {
  const summarizedTo = summary?.endTurnNumber ?? 0;
  const summaryTokens = summary?.tokenCount ?? 0;
  const recent = withTurns(messages).filter(({ turn }) => turn > summarizedTo);
  const tokens = recent.reduce((sum, { message }) => sum + estimateMessage(message), 0);
  return { tokens, turns: new Set(recent.map(({ turn }) => turn)).size, summaryTokens, summarizedTo };
}

/**
 * Give each message the number of its turn. The server numbers answers; a question has the number of its answer.
 * @param {Message[]} messages
 */
export function withTurns(messages) {
  let last = 0;
  return messages.map((message, index) => {
    const answer = message.role === "assistant" ? message : messages[index + 1];
    const known = answer?.role === "assistant" ? answer.metadata.turnNumber : undefined;
    last = known ?? (message.role === "user" ? last + 1 : last);
    return { message, turn: last };
  });
}

/** @param {Message} message */
function estimateMessage(message) {
  const counted = message.metadata.usage?.outputTokens ?? 0;
  if (message.role === "user" || !counted) return message.parts.reduce((sum, part) => sum + estimatePart(part), 0);
  return message.parts.reduce((sum, part) => sum + (isTool(part) ? estimateResult(part) : 0), counted);
}

/** @param {Part} part */
function estimatePart(part) {
  if (part.type === "text") return estimateText(/** @type {any} */ (part).text);
  if (!isTool(part)) return 0;
  return estimateText(toolName(part)) + estimateText(asText(part.input ?? part.rawInput)) + estimateResult(part);
}

/** @param {import("./types.js").ToolPart} part */
function estimateResult(part) {
  return estimateText(part.errorText ?? asText(part.output));
}

/**
 * About four characters of ASCII make a token; other scripts take about one token each.
 * @param {string} text
 */
export function estimateText(text) {
  let ascii = 0;
  let others = 0;
  for (const character of text) character < "\x80" ? ascii++ : others++;
  return Math.floor(ascii / 4) + others + 1;
}

/** @param {unknown} value */
function asText(value) {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}
