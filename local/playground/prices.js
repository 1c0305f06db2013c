/** What a model's tokens cost, by a table of list prices. A model that is not in it has no price. */

import { MODELS } from "./vendor/prices.js";

/** @import { Usage } from "./types.js" */

const MILLION = 1_000_000;

/**
 * The price of a turn in US cents; null where it is not known.
 * @param {string} model
 * @param {Usage} usage
 */
export function costOf(model, { inputTokens, outputTokens, cachedInputTokens = 0 }) {
  const price = MODELS[/** @type {keyof typeof MODELS} */ (model.replace(/^[\w-]+\//, ""))];
  if (!price) return null;
  const [input, output, cached = input] = price;
  const dollars = (inputTokens - cachedInputTokens) * input + cachedInputTokens * cached + outputTokens * output;
  return (100 * dollars) / MILLION;
}
