/** Why a turn failed, as the log of the local stack tells it. A deployed stack tells nobody. */

/** A line of the log may come after the end of the answer that it explains. */
const PAUSES_MS = [0, 300, 1_000];

/**
 * @typedef {object} Cause
 * @property {string} message
 * @property {string} cause
 * @property {string} advice
 * @property {string} traceback
 */

/**
 * Read why a request failed. Empty where nothing is known.
 * @param {string} requestId
 * @returns {Promise<Cause[]>}
 */
export async function causesOf(requestId) {
  for (const milliseconds of requestId ? PAUSES_MS : []) {
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    const causes = await read(requestId);
    if (causes.length) return causes;
  }
  return [];
}

/** @param {string} requestId @returns {Promise<Cause[]>} */
async function read(requestId) {
  try {
    const response = await fetch(`/local/causes?request_id=${encodeURIComponent(requestId)}`);
    return response.ok ? (await response.json()).causes : [];
  } catch {
    return []; // the page of a deployed stack, or one whose stack has ended: there is nothing to tell
  }
}
