/** What can go wrong with a turn, and what is said about it. */

import { ApiError } from "./api.js";
import { StreamCut } from "./sse.js";

/** @import { Message } from "./types.js" */

/**
 * @typedef {object} Problem What went wrong with the last turn, and what can be done.
 * @property {string} title
 * @property {string} detail
 * @property {string} code
 * @property {string} requestId
 * @property {number} retryAt When it makes sense to try again, as `Date.now()` tells it.
 * @property {boolean} stored Whether the server has the question.
 */

const FAILED = "The model could not answer.";

/** The code of a question that is refused because another one is being answered. */
export const BUSY = "turn_in_progress";

/** The code of a refusal because the agent's source does not load. */
export const NOT_LOADED = "not_loaded";

/** @param {boolean} kept Whether an earlier answer is still there. @returns {Problem} */
export function failure(kept) {
  const title = kept ? "The new answer failed, the previous one was kept" : "The answer failed";
  return { title, detail: "", code: "failed", requestId: "", retryAt: 0, stored: true };
}

/**
 * What a stored conversation tells of a last turn that did not go well.
 * @param {Message | undefined} last
 * @returns {Problem | null}
 */
export function leftBehind(last) {
  if (last?.metadata.status !== "failed") return null;
  return { ...failure(false), detail: FAILED };
}

/**
 * @param {unknown} error
 * @param {{ stored: boolean }} known
 * @returns {Problem}
 */
export function toProblem(error, { stored }) {
  const { title, message, code, requestId, retryAfter } =
    error instanceof ApiError
      ? error
      : new ApiError(0, { title: "Connection lost", detail: "The answer was cut off." });
  return { title, detail: message, code, requestId, retryAt: retryAfter ? Date.now() + retryAfter * 1000 : 0, stored };
}

/**
 * @param {unknown} error
 * @param {boolean} running Then a server that is briefly unwell is waited for as well.
 */
export function isLost(error, running) {
  if (error instanceof ApiError) return error.isOffline || (running && error.status >= 500);
  return error instanceof StreamCut || error instanceof TypeError; // fetch tells a lost connection by a TypeError
}

/** Whether a stop came before the server had the turn. @param {unknown} error */
export function isTooEarly(error) {
  return error instanceof ApiError && (error.status === 404 || error.code === "no_running_turn");
}

/** A question that has no answer, although nobody is answering it. @returns {Problem} */
export function unanswered() {
  return { ...failure(false), detail: "This message has no answer." };
}
