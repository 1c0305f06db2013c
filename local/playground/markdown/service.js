/** Asks the server of this page to render Markdown. */

/** @import { Tree } from "./elements.js" */

const REMEMBERED = 200;
/** @type {Map<string, Tree[]>} Chats that are opened again need no request. */
const remembered = new Map();

/**
 * The blocks of a text, or null when it was not rendered: then it is shown as it is.
 * @param {string} text
 * @returns {Promise<Tree[] | null>}
 */
export async function renderMarkdown(text) {
  const known = remembered.get(text);
  if (known) return known;
  try {
    const headers = { "content-type": "application/json" };
    const response = await fetch("/local/markdown", { method: "POST", headers, body: JSON.stringify(text) });
    if (!response.ok) return null;
    const blocks = await response.json();
    remembered.set(text, blocks);
    for (const oldest of remembered.keys()) if (remembered.size > REMEMBERED) remembered.delete(oldest);
    return blocks;
  } catch {
    return null;
  }
}
