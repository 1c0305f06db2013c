/** The messages of the open chat, kept up to date while an answer streams. */

import { withTurns } from "../context-window.js";
import { byId, fill, h, oncePerFrame } from "./dom.js";
import { icon } from "./icons.js";
import { AnswerView } from "./message.js";
import { ProblemView } from "./problem.js";
import { QuestionView } from "./question.js";
import { Scroller } from "./scroller.js";
import { Welcome } from "./welcome.js";

/** @import { Conversation } from "../conversation.js" */
/** @import { AgentTitle, Message, StackInfo } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */
/** @import { ProblemActions } from "./problem.js" */

/**
 * @typedef {object} ChatActions
 * @property {(text: string) => void} ask
 * @property {() => void} earlier
 * @property {() => void} showSummary
 */

export class ChatView {
  #list = byId("messages");
  #status = byId("chat-status");
  #scroller = new Scroller(byId("scroll"), byId("to-bottom"));
  #actions;
  /** @type {Conversation | null} */
  #conversation = null;
  /** @type {Map<string, { message: Message, view: QuestionView | AnswerView }>} */
  #views = new Map();
  #earlier;
  #divider;
  #pending = h("div", { class: "pending", "aria-hidden": "true" }, h("span"), h("span"), h("span"));
  #welcome;
  /** @type {{ problem: object, view: ProblemView } | null} */
  #problem = null;
  #summarizedTo = 0;
  #render = oncePerFrame(() => this.#show());

  /** @param {ChatActions & ProblemActions & TurnActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#welcome = new Welcome(actions.ask);
    this.#earlier = h(
      "button",
      { type: "button", class: "small-button earlier", click: actions.earlier },
      "Show earlier messages",
    );
    this.#divider = h(
      "button",
      { type: "button", class: "divider", click: actions.showSummary },
      h("span", {}, icon("spark"), "Summarised up to here"),
    );
  }

  /** @param {Conversation} conversation */
  open(conversation) {
    this.#conversation?.removeEventListener("change", this.#render);
    this.#conversation = conversation;
    this.#views.clear();
    this.#closeProblem();
    fill(this.#list);
    conversation.addEventListener("change", this.#render);
    this.#scroller.pin();
    this.#show();
  }

  /** Draw the line between what the model reads as a summary and what it reads as it was said. @param {number} turn */
  set summarizedTo(turn) {
    this.#summarizedTo = turn;
    this.#render();
  }

  /** The footers offer a trace only where there are some. @param {TurnActions["traces"]} traces */
  set traces(traces) {
    this.#actions.traces = traces;
    this.#render();
  }

  /** @param {StackInfo | null} info @param {AgentTitle} [agent] The one of this chat. */
  show(info, agent) {
    this.#welcome.update(info, agent);
    this.#actions.isFree = info?.offline ?? false;
    this.#render();
  }

  /** Go to what waits for an answer, once it is shown. */
  focusRequest() {
    this.#show();
    /** @type {HTMLElement | null} */ (this.#list.querySelector("article:last-of-type .request"))?.focus();
  }

  scrollToEnd() {
    this.#scroller.pin();
  }

  #show() {
    const chat = this.#conversation;
    if (!chat) return;
    this.#scroller.keep(() => {
      fillInOrder(this.#list, this.#rows(chat));
      this.#list.setAttribute("aria-busy", String(chat.busy));
    });
    this.#status.textContent = statusOf(chat);
    this.#status.classList.toggle("visible", chat.reconnecting || chat.stopping || chat.isRecovering);
  }

  /** Everything in the list, from the top. @param {Conversation} chat */
  #rows(chat) {
    const { messages } = chat;
    const empty = !messages.length && !chat.problem && chat.phase === "idle";
    /** @type {(Element | false | null)[]} */
    const rows = [empty && this.#welcome.element, chat.before !== null && this.#earlier];
    const streamed = chat.phase === "streaming" ? messages.at(-1) : null;
    let divided = this.#summarizedTo === 0;
    for (const { message, turn } of withTurns(messages)) {
      if (!divided && turn > this.#summarizedTo) rows.push(this.#divider);
      divided ||= turn > this.#summarizedTo;
      rows.push(this.#viewOf(message, { last: message === messages.at(-1), streaming: message === streamed, busy: chat.busy }));
    }
    if (!divided) rows.push(this.#divider);
    rows.push(isWaiting(chat) && this.#pending, this.#problemOf(chat));
    this.#forget(messages);
    return rows.filter((row) => row instanceof Element);
  }

  /** @param {Message} message @param {import("./message.js").Place} place */
  #viewOf(message, place) {
    const key = `${message.role}:${message.id}`;
    // A message that is read anew keeps its view: somebody may be writing in one of its cards.
    const view = this.#views.get(key)?.view ?? (message.role === "user" ? new QuestionView(this.#actions) : new AnswerView(this.#actions));
    this.#views.set(key, { message, view });
    view.update(message, place);
    return view.element;
  }

  /** @param {Message[]} messages */
  #forget(messages) {
    if (this.#views.size === messages.length) return;
    const kept = new Set(messages);
    for (const [key, { message }] of this.#views) if (!kept.has(message)) this.#views.delete(key);
  }

  /** @param {Conversation} chat */
  #problemOf({ problem }) {
    if (this.#problem?.problem !== problem) {
      this.#closeProblem();
      if (problem) this.#problem = { problem, view: new ProblemView(problem, this.#actions) };
    }
    return this.#problem?.view.element ?? null;
  }

  #closeProblem() {
    this.#problem?.view.close();
    this.#problem = null;
  }
}

/**
 * Make the children be these, moving nothing that is in its place: what is focused or selected stays so.
 * @param {Element} parent
 * @param {Element[]} wanted
 */
function fillInOrder(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((element, index) => {
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
}

/** Whether nothing moves although an answer is on its way. @param {Conversation} chat */
function isWaiting(chat) {
  if (chat.phase === "loading") return chat.messages.at(-1)?.role !== "assistant";
  if (!chat.busy) return false;
  const last = chat.messages.at(-1)?.parts.at(-1);
  return chat.phase === "asking" || last === undefined || last.type === "step-start";
}

/** @param {Conversation} chat */
function statusOf(chat) {
  if (chat.reconnecting) return "Connection lost. Reconnecting…";
  if (chat.stopping) return "Stopping…";
  if (chat.isRecovering) return "The process that answered is gone. Another one goes on…";
  if (!chat.busy) return "";
  const count = chat.queued.length;
  return `The assistant is answering.${count ? ` ${count} of your messages will be sent after it.` : ""}`;
}
