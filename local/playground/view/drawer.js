/** On a phone the sidebar is a drawer: opened by a button, closed by choosing, by Escape or by a touch beside it. */

import { byId } from "./dom.js";

const PHONE = matchMedia("(max-width: 760px)");

export class Drawer {
  #sidebar = byId("sidebar");
  #button = byId("menu-button");
  #shade = byId("shade");

  constructor() {
    this.#button.addEventListener("click", () => this.#set(true));
    byId("menu-close").addEventListener("click", () => this.close());
    this.#shade.addEventListener("click", () => this.close());
    PHONE.addEventListener("change", () => this.#set(false));
    this.#set(false);
  }

  get isOpen() {
    return PHONE.matches && this.#sidebar.classList.contains("open");
  }

  /** Where the sidebar is a drawer. */
  open() {
    if (PHONE.matches) this.#set(true);
  }

  close() {
    if (!this.isOpen) return;
    this.#set(false);
    this.#button.focus();
  }

  /** @param {boolean} open */
  #set(open) {
    this.#sidebar.classList.toggle("open", open);
    this.#sidebar.inert = PHONE.matches && !open;
    byId("main").inert = PHONE.matches && open;
    this.#shade.hidden = !open;
    this.#button.setAttribute("aria-expanded", String(open));
    if (open) byId("menu-close").focus();
  }
}
