/** Says when the open chats may have changed behind this page's back: by another tab, another browser, the terminal. */

const PATIENCE_MS = 1_000;

/**
 * Fires `reach` when the stack was lost or found again, `stack` when the stack's own code or model has changed, and `change` with the id of a session, or with none when anything may have changed. A hidden page does not listen:
 * it would hold one of the browser's few connections. It looks once it is seen again.
 */
export class Activity extends EventTarget {
  #url;
  /** @type {EventSource | null} */
  #source = null;
  #onVisibility = () => this.#follow();
  /** Whether the stack that tells it cannot be reached. */
  isLost = false;
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
    source.addEventListener("message", (event) => {
      const { session, stack } = JSON.parse(event.data);
      if (stack) this.dispatchEvent(new Event("stack"));
      else this.#changed(session);
    });
    source.addEventListener("error", () => {
      lost = true;
      this.#reach(true);
    });
    source.addEventListener("open", () => this.#reach(false));
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

  /** @param {boolean} isLost */
  #reach(isLost) {
    if (isLost === this.isLost) return;
    this.isLost = isLost;
    this.dispatchEvent(new Event("reach"));
  }

  /** @param {string | null} session */
  #changed(session) {
    this.dispatchEvent(new CustomEvent("change", { detail: session }));
  }
}
