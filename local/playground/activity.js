/** Says when the open chats may have changed behind this page's back: by another tab, another browser, the terminal. */

const PATIENCE_MS = 1_000;

/**
 * Fires `change` with the id of a session, or with none when anything may have changed. A hidden page does not listen:
 * it would hold one of the browser's few connections. It looks once it is seen again.
 */
export class Activity extends EventTarget {
  #url;
  /** @type {EventSource | null} */
  #source = null;
  #onVisibility = () => this.#follow();
  /** @type {Promise<unknown>} Until then something may be missed: what is read afterwards is complete. */
  listening = Promise.resolve();

  /** @param {string | null} url Where a local stack tells it; null for a stack that does not. */
  constructor(url) {
    super();
    this.#url = url;
    document.addEventListener("visibilitychange", this.#onVisibility);
    if (document.visibilityState === "visible") this.#listen();
  }

  close() {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#source?.close();
  }

  #follow() {
    if (document.visibilityState === "visible") {
      this.#changed(null);
      this.#listen();
    } else {
      this.#source?.close();
    }
  }

  #listen() {
    if (!this.#url) return;
    let lost = false;
    const source = new EventSource(this.#url);
    source.addEventListener("message", (event) => this.#changed(JSON.parse(event.data).session));
    source.addEventListener("error", () => (lost = true));
    this.listening = new Promise((resolve) => {
      for (const outcome of ["open", "error"]) source.addEventListener(outcome, resolve, { once: true });
      setTimeout(resolve, PATIENCE_MS);
    });
    source.addEventListener("open", () => {
      if (lost) this.#changed(null); // what happened meanwhile was missed
      lost = false;
    });
    this.#source?.close();
    this.#source = source;
  }

  /** @param {string | null} session */
  #changed(session) {
    this.dispatchEvent(new CustomEvent("change", { detail: session }));
  }
}
