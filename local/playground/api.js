/** The HTTP API: one method per route. Every failure is an `ApiError` that a person can read. */

import { isLocal, saveConnection } from "./connection.js";
import { newId } from "./ids.js";

/** @import { AgentDescription, Feedback, Message, ModelOptions, Processes, Request, Session, Span, StackInfo, Summary } from "./types.js" */
/** @import { Connection } from "./connection.js" */

const PAGE = 30;

/** A request that was refused, or that did not arrive (`status` 0). */
export class ApiError extends Error {
  name = "ApiError";

  /**
   * @param {number} status
   * @param {{ title?: string, detail?: string, code?: string, request_id?: string }} problem
   * @param {number | null} retryAfter In seconds.
   */
  constructor(status, problem, retryAfter = null) {
    super(problem.detail ?? `The server returned status ${status}.`);
    this.status = status;
    this.title = problem.title ?? "Request failed";
    this.code = problem.code ?? "";
    this.requestId = problem.request_id ?? "";
    this.retryAfter = retryAfter;
  }

  get isOffline() {
    return this.status === 0;
  }
}

export class Api {
  #connection;
  /** Names this page to a local stack, which then does not tell it of its own requests. */
  #clientId = newId();

  /** @param {Connection} connection */
  constructor(connection) {
    this.#connection = connection;
  }

  get isLocal() {
    return isLocal(this.#connection);
  }

  /**
   * Ask, and return the response whose body is the stream.
   * @param {object} body
   */
  async chat(body) {
    return this.#fetch(this.#connection.chatUrl, "/chat", { method: "POST", body });
  }

  /**
   * The stream of the running turn, or null when none runs.
   * @param {string} id
   */
  async resume(id) {
    const response = await this.#fetch(this.#connection.chatUrl, `/chat/${encodeURIComponent(id)}/stream`);
    return response.status === 204 ? null : response;
  }

  /**
   * @param {{ before?: string | null, search?: string }} [page]
   * @returns {Promise<{ sessions: Session[], before: string | null }>}
   */
  async listSessions({ before, search } = {}) {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (before) query.set("before", before);
    if (search) query.set("search", search);
    return this.#json(`/sessions?${query}`);
  }

  /**
   * @param {string} id
   * @param {string | null} [before]
   * @returns {Promise<{ messages: Message[], before: string | null, summarizedTo?: number | null }>}
   */
  async listMessages(id, before) {
    const page = await this.#json(`${path(id)}/messages?limit=${PAGE}${before ? `&before=${before}` : ""}`);
    return { ...page, messages: page.messages.map((/** @type {any} */ message) => ({ metadata: {}, ...message })) };
  }

  /** The last turn that the summary covers; 0 without one. @param {string} id @returns {Promise<number>} */
  async summarizedTo(id) {
    return (await this.#json(`${path(id)}/messages?limit=2`)).summarizedTo ?? 0;
  }

  /** @param {string} id @returns {Promise<Session>} */
  async getSession(id) {
    return this.#json(path(id));
  }

  /** @param {string} id @param {string} name @returns {Promise<Session>} */
  async renameSession(id, name) {
    return this.#json(path(id), { method: "PATCH", body: { name } });
  }

  /** @param {string} id */
  async deleteSession(id) {
    await this.#sessions(path(id), { method: "DELETE" });
  }

  /** @param {string} id @returns {Promise<Session>} */
  async nameSession(id) {
    return this.#json(`${path(id)}/name`, { method: "POST" });
  }

  /** Make the path through a message, down to its newest answer, the one that is shown. @param {string} id @param {string} nodeId */
  async switchBranch(id, nodeId) {
    await this.#sessions(`${path(id)}/branch`, { method: "PUT", body: { nodeId } });
  }

  /** @param {string} id */
  async cancel(id) {
    await this.#sessions(`${path(id)}/cancel`, { method: "POST" });
  }

  /**
   * Rate an answer; null takes it back.
   * @param {string} id
   * @param {string} messageId
   * @param {Feedback | null} feedback
   */
  async rate(id, messageId, feedback) {
    const where = `${path(id)}/messages/${encodeURIComponent(messageId)}/feedback`;
    await this.#sessions(where, feedback ? { method: "PUT", body: feedback } : { method: "DELETE" });
  }

  /** @param {string} id @returns {Promise<Summary | null>} */
  async getSummary(id) {
    try {
      return await this.#json(`${path(id)}/summary`);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  /** Returns whether it will be written: not when it is up to date. @param {string} id */
  async rebuildSummary(id) {
    return (await this.#sessions(`${path(id)}/summary?rebuild=true`, { method: "POST" })).status === 202;
  }

  /** What a local stack tells of itself. A deployed one has nothing there. @returns {Promise<StackInfo | null>} */
  async info() {
    return this.#local("/local/info");
  }

  /** @param {string} id The first without one. @returns {Promise<AgentDescription | null>} */
  async agent(id) {
    return this.#local(`/local/agent?agent=${encodeURIComponent(id)}`);
  }

  /** @returns {Promise<ModelOptions | null>} */
  async models() {
    return this.#local("/local/models");
  }

  /**
   * Let another model answer this tab, with its key, or null: the stack's own. Returns the stack as it is then.
   * @param {object | null} choice
   * @returns {Promise<StackInfo>}
   */
  async chooseModel(choice) {
    const info = await (await this.#fetch("", "/local/models", { method: "POST", body: choice })).json();
    this.#connection.model = choice ?? undefined;
    saveConnection(this.#connection);
    return info;
  }

  /** The tab's model and its key go only where a model may be called. @param {string} where @returns {Record<string, string>} */
  #modelHeaders(where) {
    const { model } = this.#connection;
    return model && /^\/(chat|local)\b/.test(where) ? { "x-model-choice": encodeURIComponent(JSON.stringify(model)) } : {};
  }

  /** @param {string} sessionId @returns {Promise<Processes | null>} */
  async processes(sessionId) {
    return this.#local(`/local/processes?session_id=${encodeURIComponent(sessionId)}`);
  }

  /**
   * Break something of the stack that answers a session.
   * @param {string} what
   * @param {string} sessionId
   * @returns {Promise<{ pids: number[], seconds?: number }>} After so many seconds it is mended by itself.
   */
  async break(what, sessionId) {
    return (await this.#fetch("", "/local/break", { method: "POST", body: { what, session_id: sessionId } })).json();
  }

  /** Where a local stack tells what happens to the user's chats. */
  get activityUrl() {
    if (!this.isLocal) return null;
    return `/local/activity?${new URLSearchParams({ client: this.#clientId, user: this.#connection.user?.name ?? "" })}`;
  }

  /** @param {string} id @param {number} turn @returns {Promise<Span[]>} */
  async traces(id, turn) {
    const query = new URLSearchParams({ session_id: id, turn: String(turn) });
    return (await this.#local(`/local/traces?${query}`))?.spans ?? [];
  }

  /** What waits for this user, in their own chats and, for an approver, in those of others. @returns {Promise<Request[]>} */
  async requests() {
    return (await this.#json("/approvals?limit=50")).approvals;
  }

  /** @param {string} id @param {{ approved: boolean, reason?: string }} verdict */
  async decide(id, verdict) {
    await this.#fetch(this.#connection.chatUrl, `/chat/approvals/${encodeURIComponent(id)}`, { method: "POST", body: verdict });
  }

  /** @returns {Record<string, string>} */
  #userHeaders() {
    const { name, category } = this.#connection.user ?? {};
    return { ...(name && { "x-user-id": name }), ...(category && { "x-user-category": category }) };
  }

  /** @param {string} where @returns {Promise<any>} */
  async #local(where) {
    if (!this.isLocal) return null;
    try {
      return await (await this.#fetch("", where)).json();
    } catch {
      return null; // a convenience of the local stack: the page works without it
    }
  }

  /** @param {string} where @param {Options} [options] @returns {Promise<any>} */
  async #json(where, options) {
    return (await this.#sessions(where, options)).json();
  }

  /** @param {string} where @param {Options} [options] */
  async #sessions(where, options) {
    return this.#fetch(this.#connection.sessionsUrl, where, options);
  }

  /**
   * @typedef {{ method?: string, body?: object | null }} Options
   * @param {string} base
   * @param {string} where
   * @param {Options} [options]
   */
  async #fetch(base, where, { method = "GET", body } = {}) {
    /** @type {Record<string, string>} */
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    if (this.isLocal) Object.assign(headers, { "x-client-id": this.#clientId }, this.#userHeaders(), this.#modelHeaders(where));
    if (this.#connection.token) headers.authorization = `Bearer ${this.#connection.token}`;
    let response;
    try {
      response = await fetch(base + where, { method, headers, body: body === undefined ? body : JSON.stringify(body), cache: "no-store" });
    } catch {
      throw new ApiError(0, { title: "No connection", detail: "The server cannot be reached.", code: "offline" });
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

/** @param {string} id */
function path(id) {
  return `/sessions/${encodeURIComponent(id)}`;
}

/** @param {Response} response */
async function refusal(response) {
  const problem = await response.json().catch(() => ({}));
  const seconds = Number(response.headers.get("retry-after"));
  return new ApiError(response.status, problem, seconds > 0 ? seconds : null);
}
