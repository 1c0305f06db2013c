/** One chat: what was said, what is being answered, and what went wrong. Knows nothing of the page. */

import { ApiError } from "./api.js";
import { newId } from "./ids.js";
import { BUSY, failure, isLost, isTooEarly, leftBehind, toProblem, unanswered } from "./problems.js";
import { AnswerBuilder, closeUnanswered, isOther, markWaiting, settle, sizeOf, statesOf } from "./reducer.js";
import { readEvents } from "./sse.js";

/** @import { Api } from "./api.js" */
/** @import { Problem } from "./problems.js" */
/** @import { Feedback, Message, StreamEvent, ToolPart } from "./types.js" */

/**
 * @typedef {object} Logged
 * @property {number} at Milliseconds since the turn was asked for.
 * @property {StreamEvent} event
 *
 * @typedef {() => Promise<Response | null>} Open
 *
 * @typedef {{ approved: boolean, reason?: string } | { output: unknown } | { error: string }} CallAnswer
 */

const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5_000;
/** A turn that runs is worth waiting for. A question that never arrived is the user's to send again. */
const ATTEMPTS = { running: 10, unsent: 3, busy: 20 };
const STOP_PAUSE_MS = 250;
const MAX_LOGGED = 5_000;

/** Fires `change` whenever there is something new to show, `turnstart` and `turnend` around each turn. */
export class Conversation extends EventTarget {
  /** @type {Message[]} */
  messages = [];
  /** @type {string | null} Asks for the messages before these. */
  before = null;
  /** @type {"idle" | "loading" | "asking" | "streaming"} */
  phase = "idle";
  stopping = false;
  reconnecting = false;
  /** @type {Problem | null} */
  problem = null;
  /** @type {Logged[]} */
  log = [];
  /** The last turn that the summary covers, as far as this page was told. */
  summarizedTo = 0;
  /** @type {string[]} Written during an answer, sent one after the other once it has ended well. */
  queued = [];
  /** @type {string | undefined} The agent that the user has chosen for a new chat. */
  agent;
  #api;
  /** @type {Message | null} An answer that is read again, and not yet shown. */
  #held = null;
  #requestId = "";
  #askedAt = 0;
  /** Whether another client did something while this one was occupied. */
  #missed = false;
  /** @type {Promise<void>} */
  #ready = Promise.resolve();

  /**
   * @param {Api} api
   * @param {string} [id]
   */
  constructor(api, id = newId()) {
    super();
    this.#api = api;
    this.id = id;
  }

  /** Whether another process generates again what is shown. */
  get isRecovering() {
    return this.#held !== null && this.busy;
  }

  get busy() {
    return this.phase === "asking" || this.phase === "streaming";
  }

  /**
   * Read what is stored, and pick up the answer that is running.
   * @param {Promise<unknown>} [listening] Waited for first: what others do after that is told.
   */
  load(listening = Promise.resolve()) {
    this.#set({ phase: "loading" });
    this.#ready = listening.then(() => this.#load());
    return this.#ready;
  }

  async #load() {
    const running = this.#api.resume(this.id).catch(() => null);
    try {
      await this.#reload();
    } catch (error) {
      this.#set({ problem: toProblem(error, { stored: true }) });
      if (error instanceof ApiError && error.status === 404) return this.#set({ phase: "idle" });
    }
    const response = await running;
    if (response) return void this.#turn(async () => response, { live: false });
    await this.#readLateAnswer();
    this.#set({ phase: "idle" });
  }

  /** The turn may have ended between the two looks, at the messages and at the stream: then its answer is there now. */
  async #readLateAnswer() {
    if (this.messages.at(-1)?.role !== "user") return;
    await this.#reload().catch(() => {}); // what was read before is shown
    if (this.messages.at(-1)?.role === "user") this.problem ??= unanswered();
  }

  /** Take over what another client did to this chat. */
  async sync() {
    const last = this.messages.at(-1);
    this.#missed = this.phase !== "idle";
    if (this.#missed || !last || this.problem?.stored === false) return;
    const page = await this.#api.listMessages(this.id).catch(() => null); // the next look may succeed
    this.#missed = this.phase !== "idle";
    if (!this.#missed && page && isOther(page.messages.at(-1), last)) await this.load();
  }

  async loadEarlier() {
    const page = await this.#api.listMessages(this.id, this.before);
    this.#set({ messages: [...page.messages, ...this.messages], before: page.before });
  }

  /**
   * Ask something new, or queue it while something else is being answered.
   * @param {string} text
   * @param {{ patient?: boolean }} [how] Whether to wait for a turn that is about to end.
   */
  async send(text, how) {
    await this.#ready;
    if (this.busy) return this.#set({ queued: [...this.queued, text] });
    /** @type {Message} */
    const message = { id: newId(), role: "user", parts: [{ type: "text", text }], metadata: {} };
    const kept = this.problem?.stored === false ? this.messages.slice(0, -1) : this.messages;
    this.messages = [...kept, message]; // in the place of a question that the server never took
    await this.#ask(message, how);
  }

  /** Take a message out of the queue, and return it. @param {number} index */
  takeQueued(index) {
    const text = this.queued[index] ?? "";
    this.#set({ queued: this.queued.toSpliced(index, 1) });
    return text;
  }

  /** Stop the answer that somebody else asked for, and ask the question that was refused because of it. */
  async takeOver() {
    const question = this.messages.at(-1);
    if (this.busy || !question) return;
    this.#set({ phase: "loading", problem: null });
    try {
      await this.#api.cancel(this.id).catch((error) => {
        if (!isTooEarly(error)) throw error;
      });
      const running = await this.#api.resume(this.id);
      if (running?.body) for await (const _ of readEvents(running.body)); // to its end
      await this.#reload();
    } catch (error) {
      return this.#set({ phase: "idle", problem: toProblem(error, { stored: false }) });
    }
    this.messages = [...this.messages, question];
    await this.#ask(question, { patient: true });
  }

  /** Ask the last question again, under its own id: an answer that exists is replayed, a turn is never made twice. */
  async retry() {
    const question = this.messages.findLast((message) => message.role === "user");
    if (this.busy) return;
    if (!question) return this.load();
    this.messages = this.messages.slice(0, this.messages.indexOf(question) + 1);
    await this.#ask(question);
  }

  /** Answer a question once more. Should that fail, the answer that was there stays. @param {Message} answer */
  async regenerate(answer) {
    const index = this.messages.indexOf(answer);
    if (this.busy || index < 1) return;
    const [before, question] = [this.messages, this.messages[index - 1]];
    this.messages = this.messages.slice(0, index);
    const body = { id: this.id, messages: [sent(question)], trigger: "regenerate-message", messageId: answer.id };
    await this.#turn(() => this.#api.chat(body), { live: true, before });
  }

  /** Ask a question in other words: a branch of its own, beside the one that was there. @param {Message} question @param {string} text */
  async edit(question, text) {
    const index = this.messages.indexOf(question);
    if (this.busy || index < 0) return;
    const before = this.messages;
    /** @type {Message} */
    const edited = { ...question, parts: [{ type: "text", text }], metadata: {} };
    this.messages = [...this.messages.slice(0, index), edited];
    await this.#ask(edited, { before });
  }

  /** Show another version of a message, and what was said after it. @param {string} nodeId */
  async switchBranch(nodeId) {
    if (this.busy) return;
    await this.#api.switchBranch(this.id, nodeId);
    this.messages = [];
    await this.#reload();
  }

  /**
   * Answer what the turn waits for. A refusal is thrown, and nothing has changed.
   * @param {ToolPart} part
   * @param {CallAnswer} answer
   */
  async answer(part, answer) {
    const message = this.messages.at(-1);
    if (this.busy || !message?.parts.includes(part)) return;
    const replies = [{ tool_call_id: part.toolCallId, ...answer }];
    const body = { session_id: this.id, message_id: message.id, replies };
    let response;
    try {
      response = await this.#api.chat(body);
    } catch (error) {
      void this.sync(); // somebody else may have answered
      throw error;
    }
    settle(part, answer);
    await this.#turn(async () => response, { live: true, continued: message });
  }

  /** Take back a question that never reached the server, and return its text. */
  withdraw() {
    const text =
      this.messages
        .at(-1)
        ?.parts.map((part) => /** @type {any} */ (part).text)
        .join("") ?? "";
    this.#set({ messages: this.messages.slice(0, -1), problem: null });
    return text;
  }

  /** Stop the turn on the server. The stream goes on to its end: what was answered is stored there. */
  async stop() {
    if (!this.busy || this.stopping) return;
    this.#set({ stopping: true });
    while (this.busy) {
      try {
        await this.#api.cancel(this.id);
        return;
      } catch (error) {
        if (!isTooEarly(error)) {
          this.#set({ stopping: false });
          throw error;
        }
      }
      await pause(STOP_PAUSE_MS);
    }
  }

  /**
   * Tell the server what the user thinks of an answer; null takes it back.
   * @param {Message} message
   * @param {Feedback | null} feedback
   */
  async rate(message, feedback) {
    await this.#api.rate(this.id, message.id, feedback);
    message.metadata.feedback = feedback ?? undefined;
    this.#set({});
  }

  /** @param {Message} message @param {{ patient?: boolean, before?: Message[] }} [how] */
  async #ask(message, { patient = false, before } = {}) {
    const parent = this.messages[this.messages.indexOf(message) - 1];
    const body = { id: this.id, agent: this.agent, parentId: parent?.id, messages: [sent(message)], trigger: "submit-message" };
    await this.#turn(() => this.#chat(body, patient ? ATTEMPTS.busy : 0), { live: true, before });
  }

  /** @param {object} body @param {number} attempts @returns {Promise<Response>} */
  async #chat(body, attempts) {
    try {
      return await this.#api.chat(body);
    } catch (error) {
      if (!attempts || !(error instanceof ApiError && error.code === BUSY)) throw error;
    }
    await pause(STOP_PAUSE_MS);
    return this.#chat(body, attempts - 1);
  }

  /**
   * Follow one turn from asking to its end, through lost connections.
   * @param {Open} open
   * @param {{ live: boolean, before?: Message[], continued?: Message }} options `before` is what was shown before a
   *   branch began: it is shown again if nothing comes of the branch.
   */
  async #turn(open, { live, before, continued }) {
    this.#askedAt = performance.now();
    this.#set({ phase: "asking", problem: null });
    let sent = !live;
    try {
      const answer = await this.#readThrough(open, () => (sent = true), continued);
      if (answer?.error) {
        const kept = before?.[this.messages.length - 1]; // of an edited question there is none: its words are others
        const isKept = kept?.role === "assistant" && before?.at(this.messages.length - 2) === this.messages.at(-2);
        if (before && isKept) {
          this.messages = before;
          const leaf = before.at(-1)?.metadata.nodeId;
          if (leaf) await this.#api.switchBranch(this.id, leaf).catch(() => {}); // the page shows it all the same
        }
        this.problem = { ...failure(isKept), detail: answer.error, requestId: this.#requestId };
      }
    } catch (error) {
      if (before && !sent) this.messages = before;
      this.problem = toProblem(error, { stored: sent || before !== undefined });
    }
    this.#set({ phase: "idle", stopping: false, reconnecting: false });
    this.dispatchEvent(new Event("turnend"));
    void this.#learnNodes();
    const ended = this.messages.at(-1)?.metadata.status;
    if (this.queued.length && !this.problem && ended === "complete")
      void this.send(this.takeQueued(0), { patient: true });
  }

  /**
   * @param {Open} open
   * @param {() => void} onSent
   * @param {Message} [continued]
   * @returns {Promise<AnswerBuilder | null>} Null when the turn ended while nobody was reading.
   */
  async #readThrough(open, onSent, continued) {
    let [lost, running] = [0, false];
    while (true) {
      try {
        const response = await open();
        if (!response?.body) return (await this.#reload(), null);
        this.#requestId = response.headers.get("x-request-id") ?? "";
        onSent();
        lost = 0;
        running = true;
        return await this.#read(response.body, continued);
      } catch (error) {
        if (!isLost(error, running) || lost >= ATTEMPTS[running ? "running" : "unsent"]) throw error;
      }
      // Asking again with the same id is safe while nobody knows whether it arrived. Once it has, the turn is followed.
      if (running) [open, continued] = [() => this.#api.resume(this.id), undefined];
      this.#set({ reconnecting: true });
      await pause(Math.min(FIRST_PAUSE_MS * 2 ** lost++, LONGEST_PAUSE_MS));
    }
  }

  /**
   * @param {ReadableStream<Uint8Array>} body
   * @param {Message} [continued]
   */
  async #read(body, continued) {
    const answer = new AnswerBuilder(continued);
    for await (const event of readEvents(body)) {
      this.#note(event);
      answer.apply(event);
      if (event.type === "start" && answer.message) this.#begin(answer.message);
      else if (this.#held && (answer.finished || sizeOf(this.#held) >= sizeOf(this.messages.at(-1)))) this.#place(this.#held);
      if (event.type === "data-session") this.summarizedTo = event.data.summarizedTo ?? this.summarizedTo;
      this.#set({ reconnecting: false });
    }
    return answer;
  }

  /** An answer that is read again after a cut stays as it is shown until as much of it is there. @param {Message} message */
  #begin(message) {
    const last = this.messages.at(-1);
    if (last?.id !== message.id || last === message || !sizeOf(last)) return this.#place(message);
    this.#held = message;
    this.phase = "streaming";
  }

  /**
   * Show an answer, in the place of an earlier one to the same question.
   * @param {Message} message
   */
  #place(message) {
    this.#held = null;
    const last = this.messages.at(-1);
    const replaces = last?.role === "assistant" && last.metadata.turnNumber === message.metadata.turnNumber;
    if (replaces && last.id === message.id) message.metadata.decisions ??= last.metadata.decisions;
    this.messages = [...(replaces ? this.messages.slice(0, -1) : this.messages), message];
    for (const earlier of this.messages.slice(0, -1)) closeUnanswered(earlier);
    this.phase = "streaming";
    this.dispatchEvent(new Event("turnstart"));
  }

  /** Learn the places of the new messages in the tree, which only stored ones have. */
  async #learnNodes() {
    const page = await this.#api.listMessages(this.id).catch(() => null); // then they cannot be edited until a reload
    for (const { id, role, metadata } of page?.messages ?? []) {
      const known = this.messages.find((message) => message.id === id && message.role === role);
      if (!known) continue;
      const { nodeId, siblings, decisions } = metadata;
      Object.assign(known.metadata, { nodeId, siblings, decisions });
      markWaiting(known);
    }
    this.#set({});
  }

  async #reload() {
    const page = await this.#api.listMessages(this.id);
    // What was read on demand before this page stays.
    const earlier = this.messages.findIndex(({ id }) => id === page.messages[0]?.id);
    const messages = [
      ...this.messages.slice(0, Math.max(0, earlier)),
      ...page.messages.map((message) => this.#known(message) ?? markWaiting(message)),
    ];
    const before = earlier > 0 ? this.before : page.before;
    const summarizedTo = page.summarizedTo ?? 0;
    this.#set({ messages, before, summarizedTo, problem: leftBehind(messages.at(-1)) });
  }

  /** A message that did not change stays the same object, and so keeps its place on the page. @param {Message} message */
  #known(message) {
    const { id, role, metadata } = message;
    const known = this.messages.find((other) => other.id === id && other.role === role);
    const isSame = known && JSON.stringify(known.metadata) === JSON.stringify(metadata);
    return isSame && statesOf(known) === statesOf(message) ? known : null;
  }

  /** @param {StreamEvent} event */
  #note(event) {
    this.log.push({ at: performance.now() - this.#askedAt, event });
    if (this.log.length > MAX_LOGGED) this.log.splice(0, this.log.length - MAX_LOGGED);
  }

  /** @param {Partial<Conversation>} changes */
  #set(changes) {
    Object.assign(this, changes);
    this.dispatchEvent(new Event("change"));
    if (changes.phase === "idle" && this.#missed) void this.sync();
  }
}

/** What of a message is sent. @param {Message} message */
function sent({ id, role, parts }) {
  return { id, role, parts };
}

/** Wait, or until the browser is online again. @param {number} milliseconds @returns {Promise<void>} */
function pause(milliseconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      clearTimeout(timer);
      removeEventListener("online", done);
      resolve();
    }
    addEventListener("online", done);
  });
}
