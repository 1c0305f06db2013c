/** The panel beside the chat: its tabs, open or closed, remembered. */

import { byId } from "./dom.js";

const TABS = /** @type {const} */ (["context", "agent", "inbox", "events"]);
const OPEN = "omniagent.panel";
const BESIDE = matchMedia("(min-width: 1100px)");

/** @typedef {typeof TABS[number]} Tab */

export class Panel {
  #panel = byId("panel");
  #toggle = byId("panel-toggle");
  #onShow;
  /** @type {Tab} */
  #tab = "context";

  /** @param {(tab: Tab) => void} onShow Called when a tab comes into sight. */
  constructor(onShow) {
    this.#onShow = onShow;
    this.#toggle.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    byId("panel-close").addEventListener("click", () => this.close());
    for (const tab of TABS) byId(`${tab}-tab`).addEventListener("click", () => this.show(tab));
    byId("panel-tabs").addEventListener("keydown", (event) => this.#onKey(event));
    this.#set(localStorage.getItem(OPEN) === "open" && BESIDE.matches);
  }

  /** Whether it lies over the chat: then Escape closes it. */
  get isOver() {
    return this.isOpen && !BESIDE.matches;
  }

  get isOpen() {
    return !this.#panel.hidden;
  }

  /** @param {Tab} tab */
  shows(tab) {
    return this.isOpen && this.#tab === tab;
  }

  open() {
    this.#set(true);
    localStorage.setItem(OPEN, "open");
  }

  close() {
    const focused = this.#panel.contains(document.activeElement);
    this.#set(false);
    localStorage.setItem(OPEN, "closed");
    if (focused) this.#toggle.focus();
  }

  /** @param {Tab} tab */
  show(tab) {
    this.#tab = tab;
    for (const name of TABS) {
      byId(`${name}-panel`).hidden = name !== tab;
      const button = byId(`${name}-tab`);
      button.setAttribute("aria-selected", String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
    }
    this.open();
  }

  /** @param {boolean} open */
  #set(open) {
    this.#panel.hidden = !open;
    this.#toggle.setAttribute("aria-expanded", String(open));
    if (open) this.#onShow(this.#tab);
  }

  /** Arrow keys go from tab to tab, as in any list of tabs. @param {KeyboardEvent} event */
  #onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(this.#tab) + step + TABS.length) % TABS.length];
    this.show(next);
    byId(`${next}-tab`).focus();
  }
}
