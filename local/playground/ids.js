/** Ids that the client chooses, for sessions and messages: what is sent twice is then known to be the same. */

/** A random id. `crypto.randomUUID` is missing where the page is not served from this machine or over HTTPS. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
