/** The dialog that points the page at another stack. */

import { Api } from "../api.js";
import { toBaseUrl } from "../connection.js";
import { byId } from "./dom.js";

/** @import { Connection } from "../connection.js" */

export class Settings {
  /** @type {HTMLDialogElement} */
  #dialog = byId("settings");
  /** @type {HTMLFormElement} */
  #form = byId("settings-form");
  #result = byId("settings-result");
  #onSave;

  /** @param {(connection: Connection) => void} onSave */
  constructor(onSave) {
    this.#onSave = onSave;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#save();
    });
    byId("settings-cancel").addEventListener("click", () => this.#dialog.close());
    byId("settings-local").addEventListener("click", () => this.#use({ chatUrl: "", sessionsUrl: "", token: "" }));
  }

  /** @param {Connection} connection */
  open(connection) {
    for (const name of /** @type {const} */ (["chatUrl", "sessionsUrl", "token"])) this.#field(name).value = connection[name];
    this.#say("");
    this.#dialog.showModal();
  }

  /** Take the settings over once the stack has answered to them. */
  async #save() {
    const connection = this.#read();
    if (!connection) return;
    this.#say("Connecting…");
    try {
      await new Api(connection).listSessions();
      this.#use(connection);
    } catch (error) {
      this.#say(
        `${/** @type {Error} */ (error).message} Is this page's origin (${location.origin}) among the stack's CorsOrigins?`,
      );
    }
  }

  /** @returns {Connection | null} */
  #read() {
    try {
      const chatUrl = toBaseUrl(this.#field("chatUrl").value);
      const sessionsUrl = toBaseUrl(this.#field("sessionsUrl").value);
      if (Boolean(chatUrl) === Boolean(sessionsUrl))
        return { chatUrl, sessionsUrl, token: this.#field("token").value.trim() };
      this.#say("Enter both addresses: the stack's outputs ChatUrl and SessionsUrl.");
    } catch {
      this.#say("This is not a web address.");
    }
    return null;
  }

  /** @param {Connection} connection */
  #use(connection) {
    this.#dialog.close();
    this.#onSave(connection);
  }

  /** @param {string} name @returns {HTMLInputElement} */
  #field(name) {
    return /** @type {HTMLInputElement} */ (this.#form.elements.namedItem(name));
  }

  /** @param {string} text */
  #say(text) {
    this.#result.textContent = text;
  }
}
