/** Which stack the page talks to: the one that serves it, or a deployed one with a token. */

/**
 * @typedef {object} Connection
 * @property {string} chatUrl Empty: the origin of this page.
 * @property {string} sessionsUrl
 * @property {string} token
 * @property {{ name: string, category: string }} [user] Whom a local stack takes this tab's user for.
 * @property {object} [model] The model that this tab has chosen on a local stack, with its key.
 */

const USER = "omniagent.user";
const MODEL = "omniagent.model";
const URLS = "omniagent.urls";
const TOKEN = "omniagent.token";

/** @returns {Connection} */
export function loadConnection() {
  const { chatUrl = "", sessionsUrl = "" } = JSON.parse(localStorage.getItem(URLS) ?? "{}");
  const user = JSON.parse(sessionStorage.getItem(USER) ?? "null") ?? undefined;
  const model = JSON.parse(sessionStorage.getItem(MODEL) ?? "null") ?? undefined;
  return { chatUrl, sessionsUrl, token: sessionStorage.getItem(TOKEN) ?? "", user, model };
}

/**
 * Remember a connection. The token and the model's key are forgotten with the tab: they are worth more than the addresses.
 * @param {Connection} connection
 */
export function saveConnection({ chatUrl, sessionsUrl, token, user, model }) {
  sessionStorage.setItem(USER, JSON.stringify(user ?? null));
  sessionStorage.setItem(MODEL, JSON.stringify(model ?? null));
  localStorage.setItem(URLS, JSON.stringify({ chatUrl, sessionsUrl }));
  sessionStorage.setItem(TOKEN, token);
}

/** @param {Connection} connection */
export function isLocal(connection) {
  return !connection.chatUrl && !connection.sessionsUrl;
}

/**
 * Reduce what people paste, a Function URL with or without its path, to a base.
 * @param {string} text
 */
export function toBaseUrl(text) {
  const trimmed = text.trim();
  if (!trimmed) return "";
  const url = new URL(trimmed);
  if (url.protocol !== "https:" && url.protocol !== "http:") throw new TypeError("not a web address");
  return `${url.origin}${url.pathname}`.replace(/\/(chat|sessions)?\/?$/, "");
}
