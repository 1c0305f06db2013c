/** The page: brings the chat, the list of chats and the panel together. */

import { Activity } from "./activity.js";
import { Api } from "./api.js";
import { isLocal, loadConnection, saveConnection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { textOf } from "./reducer.js";
import { SessionList } from "./session-list.js";
import { NOT_LOADED } from "./problems.js";
import { SummaryStore } from "./summary-store.js";
import { testOf } from "./test-writer.js";
import { AgentPicker } from "./view/agent-picker.js";
import { AgentView } from "./view/agent.js";
import { BreakMenu } from "./view/break-menu.js";
import { ChatView } from "./view/chat.js";
import { Composer } from "./view/composer.js";
import { ContextView } from "./view/context.js";
import { askName, confirm, showFile } from "./view/dialogs.js";
import { byId, fill, oncePerFrame } from "./view/dom.js";
import { Drawer } from "./view/drawer.js";
import { EventLogView } from "./view/event-log.js";
import { icon } from "./view/icons.js";
import { InboxView } from "./view/inbox.js";
import { ModelPicker } from "./view/model-picker.js";
import { Panel } from "./view/panel.js";
import { QueueView } from "./view/queue.js";
import { Settings } from "./view/settings.js";
import { Sidebar } from "./view/sidebar.js";
import { UserMenu } from "./view/user-menu.js";
import { toast, toastError } from "./view/toasts.js";

/** @import { Connection } from "./connection.js" */
/** @import { CallAnswer } from "./conversation.js" */
/** @import { Message, StackInfo, ToolPart } from "./types.js" */

class App {
  #connection = loadConnection();
  #api = new Api(this.#connection);
  #sessions = new SessionList(this.#api);
  #summary = new SummaryStore(this.#api);
  /** @type {Activity | null} */
  #activity = null;
  /** @type {StackInfo | null} */
  #info = null;
  /** @type {Map<string, Conversation>} Chats that are being answered stay alive while another one is open. */
  #running = new Map();
  /** @type {Conversation} */
  #chat = new Conversation(this.#api);

  #render = oncePerFrame(() => this.#show());
  #drawer = new Drawer();
  #events = new EventLogView();
  #agent = new AgentView();
  /** The name of the first agent, also while its source does not load. */
  #product = "OmniAgent";
  /** @type {string | undefined} The agent that the panel shows. */
  #described;
  #agents = new AgentPicker((id) => {
    this.#chat.agent = id;
    this.#render();
  });
  #panel = new Panel((tab) => this.#showTab(tab));
  #queue = new QueueView({
    sendQueued: (index) => this.#send(this.#chat.takeQueued(index)),
    takeBack: (index) => this.#takeBack(index),
  });
  #composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop() });
  #settings = new Settings((connection) => this.#connect(connection));
  #user = new UserMenu(
    () => this.#connection,
    (connection) => this.#connect(connection),
  );
  #inbox = new InboxView(() => this.#api, {
    show: () => this.#panel.show("inbox"),
    decided: ({ sessionId }) => void (sessionId === this.#chat.id && this.#chat.load()),
  });
  #break = new BreakMenu(
    () => this.#api,
    () => this.#chat,
  );
  #models = new ModelPicker(
    () => this.#api,
    (info) => {
      this.#info = info;
      this.#render();
    },
  );
  #context = new ContextView({ rebuildSummary: () => this.#rebuildSummary() });
  #sidebar = new Sidebar({ rename: (id) => this.#rename(id), remove: (id) => this.#remove(id) });
  #view = new ChatView({
    ask: (text) => this.#send(text),
    earlier: () => this.#chat.loadEarlier().catch(toastError),
    showSummary: () => this.#panel.show("context"),
    retry: () => this.#chat.retry(),
    takeOver: () => this.#chat.takeOver(),
    regenerate: (message) => this.#chat.regenerate(message),
    rewrite: (message, text) => this.#chat.edit(message, text),
    switchBranch: (nodeId) => this.#chat.switchBranch(nodeId).catch(toastError),
    saveAsTest: (message) => this.#saveAsTest(message),
    answer: (part, answer) => this.#answer(part, answer),
    rate: (message, feedback) => this.#chat.rate(message, feedback).catch(toastError),
    edit: () => this.#edit(),
    focus: () => this.#composer.focus(),
    openSettings: () => this.#settings.open(this.#connection),
    isFree: false,
    traces: null,
  });

  start() {
    for (const element of document.querySelectorAll("[data-icon]")) {
      element.prepend(icon(/** @type {any} */ (element.getAttribute("data-icon"))));
    }
    byId("new-chat").addEventListener("click", () => this.#newChat());
    byId("rename").addEventListener("click", () => this.#rename(this.#chat.id));
    byId("context-chip").addEventListener("click", () => this.#panel.show("context"));
    byId("theme-toggle").addEventListener("click", () => dispatchEvent(new Event("omniagent:toggle-theme")));
    byId("settings-button").addEventListener("click", () => this.#settings.open(this.#connection));
    byId("skip-link").addEventListener("click", (event) => {
      event.preventDefault();
      this.#composer.focus();
    });
    document.addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("hashchange", () => this.#route());
    void this.#connect(this.#connection);
  }

  /** Talk to a stack: everything that is shown comes from it anew. @param {Connection} connection */
  async #connect(connection) {
    const changed = connection !== this.#connection;
    saveConnection(connection);
    this.#connection = connection;
    this.#api = new Api(connection);
    this.#running.clear();
    this.#sessions.removeEventListener("change", this.#render);
    this.#summary.removeEventListener("change", this.#render);
    this.#sessions = new SessionList(this.#api);
    this.#summary = new SummaryStore(this.#api);
    this.#sessions.addEventListener("change", this.#render);
    this.#summary.addEventListener("change", this.#render);
    this.#sidebar.open(this.#sessions);
    this.#activity?.close();
    this.#activity = new Activity(this.#api.activityUrl);
    this.#activity.addEventListener("change", (event) => this.#onActivity(/** @type {CustomEvent} */ (event).detail));
    this.#activity.addEventListener("stack", () => this.#onStackChange());
    this.#activity.addEventListener("reach", this.#render);
    this.#info = null;
    this.#product = "OmniAgent";
    if (changed && location.hash) history.replaceState(null, "", location.pathname);
    this.#route();
    const api = this.#api;
    await this.#activity.listening;
    if (api !== this.#api) return; // another stack was chosen meanwhile
    void this.#sessions.refresh();
    void this.#inbox.refresh();
    await this.#readInfo();
    if (api === this.#api) await this.#awaitName(this.#chat);
  }

  /** What was refused because the agent does not load is sent again once its file was saved. */
  async #onStackChange() {
    await this.#readInfo();
    if (this.#panel.shows("agent")) this.#showAgent();
    if (this.#chat.problem?.code === NOT_LOADED) await this.#chat.retry();
  }

  /** Read what the stack is: at the beginning, and after its code or its model has changed. */
  async #readInfo() {
    const api = this.#api;
    const info = await api.info();
    if (api !== this.#api) return; // another stack was chosen meanwhile
    this.#info = info;
    const traces = (/** @type {number} */ turn) => this.#api.traces(this.#chat.id, turn);
    this.#view.traces = this.#info ? traces : null;
    this.#render();
  }

  /** Open the chat that the address names, or an empty one. */
  #route() {
    const id = /^#\/chat\/([\w.~-]+)$/.exec(location.hash)?.[1];
    this.#drawer.close();
    if (!id) return this.#open(new Conversation(this.#api));
    if (id === this.#chat.id) return;
    const running = this.#running.get(id);
    this.#open(running ?? new Conversation(this.#api, id));
    void this.#load(this.#chat, !running);
  }

  /** @param {Conversation} chat @param {boolean} read Whether its messages have to be read first. */
  async #load(chat, read) {
    if (read) await chat.load(this.#activity?.listening);
    if (chat !== this.#chat) return;
    try {
      if (chat.messages.length) await this.#sessions.look(chat.id);
      await this.#refreshSummary(chat);
      await this.#awaitName(chat);
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {Conversation} chat */
  async #refreshSummary(chat) {
    const known = this.#summary.summary?.endTurnNumber ?? 0;
    if (chat === this.#chat && chat.summarizedTo > known) await this.#summary.refresh();
  }

  /** Somebody else may have changed a chat; null stands for any. @param {string | null} id */
  async #onActivity(id) {
    const chat = this.#chat;
    void this.#sessions.refresh();
    void this.#inbox.refresh();
    if (id !== null && id !== chat.id) return;
    await chat.sync();
    await this.#refreshSummary(chat).catch(toastError);
    await this.#awaitName(chat);
  }

  /** @param {import("./view/panel.js").Tab} tab */
  #showTab(tab) {
    this.#render();
    if (tab === "inbox") void this.#inbox.refresh();
    if (tab === "agent") this.#showAgent();
  }

  #showAgent() {
    this.#described = this.#agentId;
    void this.#agent.show(() => this.#api.agent(this.#described ?? ""));
  }

  /** @param {Conversation} chat */
  #open(chat) {
    this.#chat.removeEventListener("change", this.#render);
    this.#chat = chat;
    chat.addEventListener("change", this.#render);
    chat.addEventListener("turnstart", this.#turnStarted);
    chat.addEventListener("turnend", this.#turnEnded);
    this.#summary.open(chat.id);
    this.#view.open(chat);
    this.#events.open(chat);
    this.#sidebar.currentId = chat.id;
    this.#composer.open(chat.id, !location.hash);
    this.#composer.focus();
    this.#render();
  }

  #newChat() {
    if (location.hash) history.pushState(null, "", location.pathname);
    this.#route();
  }

  /** @param {string} text */
  async #send(text) {
    const chat = this.#chat;
    history.replaceState(null, "", `#/chat/${chat.id}`);
    this.#composer.adopt(chat.id);
    this.#running.set(chat.id, chat);
    this.#view.scrollToEnd();
    await chat.send(text);
  }

  /** @param {ToolPart} part @param {CallAnswer} answer */
  async #answer(part, answer) {
    const chat = this.#chat;
    this.#running.set(chat.id, chat);
    await chat.answer(part, answer);
  }

  /** @param {number} index */
  #takeBack(index) {
    const text = this.#chat.takeQueued(index);
    this.#composer.text = [text, this.#composer.text].filter(Boolean).join("\n");
    this.#composer.focus();
  }

  // Functions that stay the same: a chat that is opened twice is still listened to once.
  #turnStarted = () => this.#sessions.refresh();
  #turnEnded = (/** @type {Event} */ event) => this.#onTurnEnd(/** @type {Conversation} */ (event.target));

  /** @param {Conversation} chat */
  async #onTurnEnd(chat) {
    this.#running.delete(chat.id);
    void this.#inbox.refresh();
    if (chat === this.#chat && chat.messages.at(-1)?.metadata.status === "waiting" && this.#composer.isUnused) this.#view.focusRequest();
    try {
      await this.#sessions.refresh();
      await this.#nameIfUnnamed(chat);
      await this.#refreshSummary(chat);
    } catch (error) {
      toastError(error);
    }
  }

  /** Name a chat after its first answer, where the server does not: it names none that has no good answer. @param {Conversation} chat */
  async #nameIfUnnamed(chat) {
    const [first] = chat.messages;
    if (chat.messages.at(-1)?.metadata.status !== "complete") await this.#sessions.nameByText(chat.id, first ? textOf(first) : "");
    else if (!this.#info?.name_sessions) await this.#sessions.nameIfUnnamed(chat.id);
    else await this.#awaitName(chat);
  }

  /** Show the name that the server gives a chat that has an answer. @param {Conversation} chat */
  async #awaitName(chat) {
    const isAnswered = chat.messages.some(({ metadata }) => metadata.status === "complete");
    if (isAnswered && this.#info?.name_sessions) await this.#sessions.awaitName(chat.id);
  }

  /** @param {Message} answer */
  #saveAsTest(answer) {
    const question = this.#chat.messages[this.#chat.messages.indexOf(answer) - 1];
    if (question) showFile("This turn as a test", testOf(question, answer));
  }

  #stop() {
    this.#chat.stop().catch(toastError);
  }

  #edit() {
    this.#composer.text = this.#chat.withdraw();
    this.#composer.focus();
  }

  async #rebuildSummary() {
    try {
      const note = await this.#summary.rebuild();
      if (note) toast(note);
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {string} id */
  async #rename(id) {
    const name = await askName(this.#sessions.find(id)?.name ?? "");
    if (name) await this.#sessions.rename(id, name).catch(toastError);
  }

  /** @param {string} id */
  async #remove(id) {
    const name = this.#sessions.find(id)?.name || "New chat";
    if (!(await confirm("Delete this chat?", `“${name}” and everything in it will be gone for good.`, "Delete")))
      return;
    try {
      await this.#sessions.remove(id);
      if (id === this.#chat.id) this.#newChat();
    } catch (error) {
      toastError(error);
    }
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (document.querySelector("dialog[open]")) return;
    const command = event.metaKey || event.ctrlKey;
    if (command && event.key === "k") {
      event.preventDefault();
      this.#drawer.open();
      this.#sidebar.focusSearch();
    } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      this.#newChat();
    } else if (event.key === "Escape" && !event.isComposing) {
      if (this.#drawer.isOpen) this.#drawer.close();
      else if (this.#panel.isOver) this.#panel.close();
      else if (this.#chat.busy) this.#stop();
    }
  }

  /** The agent of the open chat, as far as one is known or chosen. */
  get #agentId() {
    return this.#sessions.find(this.#chat.id)?.agent ?? this.#chat.agent;
  }

  /** Whether the stack can be reached, and its agent loaded. */
  #stackState() {
    if (this.#activity?.isLost || this.#sessions.error?.isOffline) return "gone";
    return this.#info?.agents?.[0]?.problem ? "broken" : "";
  }

  #show() {
    const session = this.#sessions.find(this.#chat.id);
    const name = session?.name || "New chat";
    const { summary, rebuilding } = this.#summary;
    byId("chat-name").textContent = name;
    const agents = this.#info?.agents ?? [];
    const agent = agents.find(({ id }) => id === this.#agentId) ?? agents[0];
    this.#product = agents[0]?.title || this.#product;
    document.title = session?.name ? `${name} · ${this.#product}` : this.#product;
    byId("brand-name").textContent = this.#product;
    this.#composer.asks = agent?.title ?? "";
    const isNew = !session && !this.#chat.messages.length && this.#chat.phase === "idle";
    this.#agents.update(this.#info, { id: this.#agentId, isNew });
    if (this.#panel.shows("agent") && this.#agentId !== this.#described) this.#showAgent();
    this.#models.update(this.#info);
    this.#break.update(this.#info);
    this.#user.update(this.#connection.user, this.#info !== null);
    this.#view.show(this.#info, agent);
    byId("rename").hidden = !session;
    const state = this.#stackState();
    byId("stack-dot").className = `dot ${state}`;
    fill(byId("stack-name"), stackName(this.#connection, this.#info, state));
    this.#composer.update(this.#chat);
    this.#queue.update(this.#chat);
    this.#context.update({ messages: this.#chat.messages, summary, rebuilding, info: this.#info });
    this.#view.summarizedTo = summary?.endTurnNumber ?? 0;
    this.#events.update();
  }
}

/** @param {Connection} connection @param {StackInfo | null} info @param {string} state */
function stackName(connection, info, state) {
  if (state === "gone") return "No connection";
  if (state === "broken") return "Does not load";
  if (!isLocal(connection)) return new URL(connection.sessionsUrl).host;
  return info ? "Local stack" : "This server";
}

new App().start();
