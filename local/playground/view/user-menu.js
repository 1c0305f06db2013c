/** Whom a local stack takes this tab's user for: to try what a second user sees. A deployed stack takes a token. */

import { askUser } from "./dialogs.js";
import { byId } from "./dom.js";

/** @import { Connection } from "../connection.js" */

export class UserMenu {
  #button = byId("user-button");

  /** @param {() => Connection} connection @param {(connection: Connection) => void} onChange */
  constructor(connection, onChange) {
    this.#button.addEventListener("click", async () => {
      const user = await askUser(connection().user);
      if (user !== null) onChange({ ...connection(), user: user || undefined });
    });
  }

  /** @param {Connection["user"]} user @param {boolean} isLocal */
  update(user, isLocal) {
    this.#button.hidden = !isLocal;
    this.#button.textContent = user?.name ?? "You";
    this.#button.setAttribute("aria-label", `User: ${user?.name ?? "you"}`);
    this.#button.classList.toggle("other", Boolean(user));
  }
}
