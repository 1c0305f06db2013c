/** Which addresses a link in a model's text may have. */

const ALLOWED = new Set(["http:", "https:", "mailto:"]);

/**
 * Return the address when it is absolute and harmless, or null. The browser's own parser decides what the scheme is,
 * so tricks such as `java\nscript:` are seen as it would see them.
 * @param {string} text
 */
export function safeUrl(text) {
  try {
    const url = new URL(text.trim());
    return ALLOWED.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
