/** The list of chats: search, open, rename, delete. */

import { ageGroup, formatDay } from "../format.js";
import { NOT_LOADED } from "../problems.js";
import { byId, fill, h, oncePerFrame } from "./dom.js";
import { icon } from "./icons.js";

/** @import { SessionList } from "../session-list.js" */
/** @import { Session } from "../types.js" */

/**
 * @typedef {object} SidebarActions
 * @property {(id: string) => void} rename
 * @property {(id: string) => void} remove
 */

const TYPING_PAUSE_MS = 200;

export class Sidebar {
  #list = byId("session-list");
  /** @type {HTMLInputElement} */
  #search = byId("session-search");
  #actions;
  /** @type {SessionList | null} */
  #sessions = null;
  #currentId = "";
  #shown = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #typing;
  #render = oncePerFrame(() => this.#show());

  /** @param {SidebarActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#sessions?.setSearch(this.#search.value.trim()), TYPING_PAUSE_MS);
    });
  }

  focusSearch() {
    this.#search.focus();
    this.#search.select();
  }

  /** @param {SessionList} sessions */
  open(sessions) {
    this.#sessions?.removeEventListener("change", this.#render);
    this.#sessions = sessions;
    this.#search.value = "";
    this.#shown = "";
    sessions.addEventListener("change", this.#render);
    this.#show();
  }

  /** @param {string} id */
  set currentId(id) {
    this.#currentId = id;
    this.#render();
  }

  #show() {
    const list = this.#sessions;
    if (!list) return;
    const { sessions, before, loaded, search, error } = list;
    const shown = JSON.stringify([this.#currentId, sessions, before, loaded, search, error?.message]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const focused = this.#list.contains(document.activeElement)
      ? document.activeElement?.getAttribute("data-key")
      : null;
    const groups = Map.groupBy(list.sessions, (session) => ageGroup(new Date(session.updatedAt)));
    fill(
      this.#list,
      list.error && h("p", { class: "list-note", role: "alert" }, noteOf(list.error)),
      list.loaded && !list.error && !list.sessions.length && h("p", { class: "list-note" }, emptyNote(list.search)),
      ...[...groups].map(([title, sessions]) => this.#group(title, sessions)),
      list.before !== null &&
        h(
          "button",
          { type: "button", class: "small-button more", "data-key": "more", click: () => list.more() },
          "More chats",
        ),
    );
    if (focused) this.#focus(focused);
  }

  /** The list is made anew: what had the focus gets it back. @param {string} key */
  #focus(key) {
    /** @type {HTMLElement | null} */ (this.#list.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus();
  }

  /** @param {string} title @param {Session[]} sessions */
  #group(title, sessions) {
    const id = `group-${title.toLowerCase().replace(/\W/g, "-")}`;
    return h(
      "section",
      { "aria-labelledby": id },
      h("h2", { id }, title),
      h("ul", {}, ...sessions.map((session) => this.#item(session))),
    );
  }

  /** @param {Session} session */
  #item(session) {
    const name = session.name || "New chat";
    const current = session.id === this.#currentId;
    const { rename, remove } = this.#actions;
    return h(
      "li",
      { class: current ? "session current" : "session" },
      h(
        "a",
        {
          href: `#/chat/${session.id}`,
          "aria-current": current && "page",
          title: formatDay(new Date(session.updatedAt)),
          "data-key": session.id,
        },
        session.answering && h("span", { class: "dot", title: "Answering" }),
        session.waiting && h("span", { class: "dot waiting", role: "img", "aria-label": "Waiting for you:", title: "Waiting for you" }),
        name,
        session.snippet && h("small", { class: "snippet" }, ...marked(session.snippet, this.#search.value.trim())),
      ),
      this.#button("pencil", `Rename ${name}`, `rename ${session.id}`, () => rename(session.id)),
      this.#button("trash", `Delete ${name}`, `delete ${session.id}`, () => remove(session.id)),
    );
  }

  /** @param {Parameters<typeof icon>[0]} name @param {string} label @param {string} key @param {() => void} click */
  #button(name, label, key, click) {
    return h(
      "button",
      { type: "button", class: "icon-button", "aria-label": label, title: label, "data-key": key, click },
      icon(name),
    );
  }
}

/** A passage with what was searched for, wherever the server found it. @param {string} passage @param {string} search */
function marked(passage, search) {
  const at = search ? passage.toLowerCase().indexOf(search.toLowerCase()) : -1;
  if (at < 0) return [passage];
  const end = at + search.length;
  return [passage.slice(0, at), h("mark", {}, passage.slice(at, end)), passage.slice(end)];
}

/** @param {import("../api.js").ApiError} error */
function noteOf({ code, title, message }) {
  return code === NOT_LOADED ? title : message;
}

/** @param {string} search */
function emptyNote(search) {
  return search ? `No chat contains “${search}”.` : "Your chats will be listed here.";
}
