/** Break something on purpose, and watch the answer go on: a menu, and a strip with the processes and the journal. */

import { formatDuration } from "../format.js";
import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { toastError } from "./toasts.js";

/** @import { Api } from "../api.js" */
/** @import { Conversation } from "../conversation.js" */
/** @import { Process, Processes, StackInfo } from "../types.js" */

const LOOK_MS = 400;
const KINDS = /** @type {const} */ ([
  ["kill", "Kill this Lambda", "kill -9. Another process finishes the answer."],
  ["freeze", "Freeze it for 60 s", "Longer than its lease: another process takes the turn over."],
  ["mongodb", "Cut MongoDB off for 6 s", "The history cannot be reached."],
  ["model", "Cut the model off for 6 s", "It goes silent in the middle of a sentence."],
]);
const DONE = {
  kill: "Killed with kill -9.",
  freeze: "Frozen for 60 s.",
  mongodb: "MongoDB does not answer for 6 s.",
  model: "The model does not answer for 6 s.",
};
/** The functions that answer chats. */
const SHOWN = ["chat", "run"];

export class BreakMenu {
  #button = byId("break-button");
  #menu = byId("break-menu");
  #strip = byId("strip");
  #api;
  #chat;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  #lease = 10_000;
  #said = "";
  /** @type {Map<number, "killed" | "frozen">} What was done to which process, for as long as that is said. */
  #broken = new Map();
  /** @type {Map<number, Process>} As they were shown last. */
  #known = new Map();
  /** @type {"before" | "during" | "over"} The answer that what was broken is about. */
  #stage = "before";
  #shown = "";
  /** The journal before the question that is being answered. */
  #earlier = "";

  /** @param {() => Api} api @param {() => Conversation} chat The open one. */
  constructor(api, chat) {
    this.#api = api;
    this.#chat = chat;
    const watch = h("button", { type: "button", class: "menu-item", click: () => this.#pick(() => this.#toggle()) });
    this.#menu.addEventListener("toggle", () => {
      this.#button.setAttribute("aria-expanded", String(this.#menu.matches(":popover-open")));
      fill(watch, h("strong", {}, this.#timer ? "Hide the processes" : "Show the processes"));
    });
    fill(this.#menu, ...KINDS.map(([kind, label, note]) => this.#item(kind, label, note)), watch);
  }

  /** @param {StackInfo | null} info */
  update(info) {
    this.#button.hidden = !info;
    this.#lease = (info?.lease_seconds ?? 10) * 1000;
    if (!info) this.#hide();
  }

  /** @param {keyof typeof DONE} kind @param {string} label @param {string} note */
  #item(kind, label, note) {
    const click = () => this.#pick(() => this.#break(kind));
    return h("button", { type: "button", class: "menu-item", click }, h("strong", {}, label), h("span", {}, note));
  }

  /** @param {() => unknown} action */
  #pick(action) {
    this.#menu.hidePopover();
    action();
  }

  /** @param {keyof typeof DONE} kind */
  async #break(kind) {
    try {
      const { pids, seconds } = await this.#api().break(kind, this.#chat().id);
      this.#said = DONE[kind];
      if (kind === "kill" || kind === "freeze") for (const pid of pids) this.#broken.set(pid, kind === "kill" ? "killed" : "frozen");
      if (seconds) setTimeout(() => this.#said === DONE[kind] && (this.#said = ""), 1000 * seconds);
      this.#stage = "before";
      this.#watch();
    } catch (error) {
      toastError(error);
    }
  }

  #toggle() {
    if (this.#timer) this.#hide();
    else this.#watch();
  }

  #watch() {
    this.#strip.hidden = false;
    this.#timer ??= setInterval(() => this.#look(), LOOK_MS);
    void this.#look();
  }

  #hide() {
    this.#forget();
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#strip.hidden = true;
  }

  #forget() {
    this.#said = "";
    this.#broken.clear();
  }

  async #look() {
    if (document.visibilityState !== "visible") return;
    const { busy } = this.#chat();
    if (busy && this.#stage === "over") this.#forget(); // it was about an earlier answer
    if (busy) this.#stage = "during";
    else if (this.#stage === "during") this.#stage = "over";
    const found = await this.#api().processes(this.#chat().id);
    if (found && this.#timer) this.#show(found);
  }

  /** @param {Processes} found */
  #show({ processes, journal }) {
    const alive = processes.filter(({ function: name }) => SHOWN.includes(name));
    const shown = [...this.#killed(alive), ...alive.map((process) => this.#asBroken(process))];
    for (const process of alive) this.#known.set(process.pid, process);
    const answering = shown.some(({ here }) => here);
    const text = journal ? this.#journal(journal, answering) : "No turn has run in this chat yet.";
    const key = JSON.stringify([shown, this.#said, text]);
    if (key !== this.#shown) fill(this.#strip, ...this.#rows(shown, text));
    this.#shown = key;
  }

  /** Those that are no longer there, because somebody has killed them. @param {Process[]} alive */
  #killed(alive) {
    return [...this.#broken]
      .filter(([pid, what]) => what === "killed" && !alive.some((process) => process.pid === pid))
      .map(([pid]) => ({ function: this.#known.get(pid)?.function ?? "chat", pid, state: "killed", here: false }));
  }

  /** @param {Process} process */
  #asBroken(process) {
    return this.#broken.get(process.pid) === "frozen" ? { ...process, state: "frozen", here: false } : process;
  }

  /** @param {Process[]} shown @param {string} text */
  #rows(shown, text) {
    const close = h("button", { type: "button", class: "icon-button", "aria-label": "Hide the processes", click: () => this.#hide() }, icon("close"));
    return [
      h("ul", { class: "processes", "aria-label": "Processes" }, ...shown.map(processView)),
      h("p", { class: "journal" }, this.#said && h("strong", {}, `${this.#said} `), text),
      close,
    ];
  }

  /** @param {NonNullable<Processes["journal"]>} journal @param {boolean} answering */
  #journal({ of, records, runs, age_ms }, answering) {
    const newest = `${of} ${records}`;
    const taken = runs > 1 ? ` · taken over ${runs === 2 ? "once" : `${runs - 1} times`}` : "";
    const counted = `Journal: ${records} ${records === 1 ? "record" : "records"}${taken}`;
    const { busy, messages } = this.#chat();
    if (!busy) {
      this.#earlier = newest;
      return `${counted} · answer ${messages.at(-1)?.metadata.status ?? "missing"}`;
    }
    if (newest === this.#earlier) return "This answer is not in the journal yet.";
    const beat = `${counted} · heartbeat ${formatDuration(age_ms)} ago`;
    if (age_ms < this.#lease / 2) return beat;
    const left = Math.ceil((this.#lease - age_ms) / 1000);
    return `${beat} · ${left > 0 ? `taken over in ${left} s` : answering ? "being taken over" : "waits for the next reader"}`;
  }
}

/** @param {Process} process */
function processView({ function: name, pid, state, here }) {
  const label = here ? "serves this chat" : state;
  return h("li", { class: `process ${here ? "here" : state}`, title: `Process ${pid}` }, h("span", { class: "dot" }), `${name} ${pid}`, h("small", {}, label));
}
