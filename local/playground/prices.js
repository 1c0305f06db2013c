/** What a model's tokens cost, by a table of list prices. A model that is not in it has no price. */

import { MODELS } from "./vendor/prices.js";

/** @import { Usage } from "./types.js" */

const MILLION = 1_000_000;

/**
 * The price of a turn in US cents; null where it is not known.
 * @param {string} model
 * @param {Usage} usage
 */
export function costOf(model, { inputTokens, outputTokens, cachedInputTokens = 0, cacheWriteTokens = 0 }) {
  const price = MODELS[/** @type {keyof typeof MODELS} */ (model.replace(/^[\w-]+\//, ""))];
  if (!price) return null;
  const [input, output, read, write] = price;
  const plainTokens = inputTokens - cachedInputTokens - cacheWriteTokens;
  const dollars = plainTokens * input + cachedInputTokens * read + cacheWriteTokens * write + outputTokens * output;
  return (100 * dollars) / MILLION;
}
