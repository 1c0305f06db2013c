/** The summary of the open chat: what the model is told of the turns that it no longer sees. */

/** @import { Api } from "./api.js" */
/** @import { Summary } from "./types.js" */

const LOOKS = 120;
const LOOK_MS = 500;
const UP_TO_DATE = "The summary is up to date.";
const TOO_SHORT = "There is nothing to summarise yet. The model reads the last turn in full.";
const LATE = "The summary is still being generated. Check again in a moment.";

/** Fires `change` when there is another summary, and when one is being made. */
export class SummaryStore extends EventTarget {
  /** @type {Summary | null} */
  summary = null;
  rebuilding = false;
  #api;
  #id = "";

  /** @param {Api} api */
  constructor(api) {
    super();
    this.#api = api;
  }

  /** Turn to another chat. @param {string} id */
  open(id) {
    this.#id = id;
    this.#set({ summary: null, rebuilding: false });
  }

  async refresh() {
    const id = this.#id;
    const summary = await this.#api.getSummary(id);
    if (id === this.#id) this.#set({ summary });
  }

  /** Have it written anew, and wait for it. Returns what there is to say to the user, if there is something. */
  async rebuild() {
    const id = this.#id;
    const before = this.summary?.createdAt;
    this.#set({ rebuilding: true });
    try {
      if (!(await this.#api.rebuildSummary(id))) return this.summary ? UP_TO_DATE : TOO_SHORT;
      for (let look = 0; look < LOOKS && id === this.#id; look++) {
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
        if (!this.summary && !(await this.#api.summarizedTo(id))) continue;
        await this.refresh();
        if (this.summary && this.summary.createdAt !== before) return "";
      }
      return id === this.#id ? LATE : "";
    } finally {
      if (id === this.#id) this.#set({ rebuilding: false });
    }
  }

  /** @param {Partial<SummaryStore>} changes */
  #set(changes) {
    Object.assign(this, changes);
    this.dispatchEvent(new Event("change"));
  }
}
