/** The chats of the user, a page at a time, as the sidebar shows them. */

/** @import { Api, ApiError } from "./api.js" */
/** @import { Session } from "./types.js" */

/** As long as the server may take. */
const NAME_PAUSES_MS = [200, 400, 800, 1_600, 3_200, 6_400];

const NAME_WORDS = 6;

/** Fires `change` whenever there is something new to show. */
export class SessionList extends EventTarget {
  /** @type {Session[]} */
  sessions = [];
  /** @type {string | null} Asks for the next page. */
  before = null;
  search = "";
  loaded = false;
  /** @type {ApiError | null} */
  error = null;
  /** @type {Map<string, Session>} Also those that are not in the list: of other pages, or not found by the search. */
  #known = new Map();
  #api;
  #asked = 0;
  /** @type {Promise<void> | null} */
  #refreshing = null;
  #again = false;

  /** @param {Api} api */
  constructor(api) {
    super();
    this.#api = api;
  }

  /** Read the first page again. Calls during a reading share one more, however many they are. */
  refresh() {
    this.#again = true;
    this.#refreshing ??= this.#refresh().finally(() => (this.#refreshing = null));
    return this.#refreshing;
  }

  async #refresh() {
    while (this.#again) {
      this.#again = false;
      await this.#read(null);
    }
  }

  async more() {
    await this.#read(this.before);
  }

  /** @param {string} search */
  async setSearch(search) {
    this.search = search;
    await this.refresh();
  }

  /** @param {string} id */
  find(id) {
    return this.#known.get(id);
  }

  /** Read a session that is in no list yet. @param {string} id */
  async look(id) {
    if (!this.find(id)) this.#put(await this.#api.getSession(id));
  }

  /** @param {string} id @param {string} name */
  async rename(id, name) {
    this.#put(await this.#api.renameSession(id, name));
  }

  /** Let the model find a name, unless there is one. @param {string} id */
  async nameIfUnnamed(id) {
    const session = this.find(id) ?? (await this.#api.getSession(id));
    if (!session.name) this.#put(await this.#api.nameSession(id));
  }

  /** Name a chat by the first words that were said in it, unless it has a name. @param {string} id @param {string} text */
  async nameByText(id, text) {
    const session = this.find(id);
    const words = text.split(/\s+/).filter(Boolean).slice(0, NAME_WORDS).join(" ").slice(0, 80);
    if (session && !session.name && words) await this.rename(id, words);
  }

  /** Look for the name that the server gives soon after the first answer. @param {string} id */
  async awaitName(id) {
    for (const milliseconds of NAME_PAUSES_MS) {
      if (this.find(id)?.name) return;
      await new Promise((resolve) => setTimeout(resolve, milliseconds));
      const session = await this.#api.getSession(id).catch(() => null); // a search may hide it from the list
      if (!session) return; // it is gone
      this.#put(session);
    }
  }

  /** @param {string} id */
  async remove(id) {
    await this.#api.deleteSession(id);
    this.sessions = this.sessions.filter((session) => session.id !== id);
    this.#known.delete(id);
    this.#changed();
  }

  /** @param {string | null} before */
  async #read(before) {
    const asked = ++this.#asked;
    try {
      const page = await this.#api.listSessions({ before, search: this.search });
      if (asked !== this.#asked) return; // something newer was asked for meanwhile
      this.sessions = before ? [...this.sessions, ...page.sessions] : page.sessions;
      this.before = page.before;
      for (const session of page.sessions) this.#known.set(session.id, session);
      this.error = null;
    } catch (error) {
      if (asked !== this.#asked) return;
      this.error = /** @type {ApiError} */ (error);
    }
    this.loaded = true;
    this.#changed();
  }

  /** @param {Session} session */
  #put(session) {
    this.#known.set(session.id, session);
    this.sessions = this.sessions.map((other) => (other.id === session.id ? session : other));
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
