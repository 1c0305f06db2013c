/** Which of several agents answers a chat: chosen for a new one, shown for the others. */

import { byId, fill, h } from "./dom.js";

/** @import { AgentTitle, StackInfo } from "../types.js" */

export class AgentPicker {
  /** @type {HTMLSelectElement} */
  #select = byId("agent-picker");
  #name = byId("agent-name");
  #shown = "";

  /** @param {(id: string | undefined) => void} onChosen */
  constructor(onChosen) {
    this.#select.addEventListener("change", () => onChosen(this.#select.value || undefined));
  }

  /**
   * @param {StackInfo | null} info
   * @param {{ id?: string, isNew: boolean }} chat Its agent, as far as it is known.
   */
  update(info, { id, isNew }) {
    const agents = info?.agents ?? [];
    const isChoice = isNew && agents.length > 1;
    this.#select.hidden = !isChoice;
    this.#name.hidden = isChoice || !id;
    this.#name.textContent = agents.find((agent) => agent.id === id)?.title ?? id ?? "";
    if (isChoice) this.#offer(agents, info?.has_rule ?? false, id);
  }

  /** @param {AgentTitle[]} agents @param {boolean} hasRule @param {string} [id] */
  #offer(agents, hasRule, id) {
    const shown = JSON.stringify([agents.map(({ title }) => title), hasRule]);
    if (shown !== this.#shown) {
      const options = agents.map((agent) => h("option", { value: agent.id }, agent.title));
      fill(this.#select, hasRule && h("option", { value: "" }, "Chosen by rule"), ...options);
      this.#shown = shown;
    }
    this.#select.value = id ?? (hasRule ? "" : (agents[0].id ?? ""));
  }
}
