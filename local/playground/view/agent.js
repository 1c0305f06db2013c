/** The agent as its source is now: instructions, tools and model. */

import { formatJson } from "../format.js";
import { byId, fill, h } from "./dom.js";
import { section } from "./fold.js";
import { icon } from "./icons.js";

/** @import { AgentDescription, AgentTool } from "../types.js" */

export class AgentView {
  #panel = byId("agent-panel");

  /** @param {() => Promise<AgentDescription | null>} load */
  async show(load) {
    if (!this.#panel.hasChildNodes()) fill(this.#panel, note("Reading the agent…"));
    const agent = await load();
    if (!agent) fill(this.#panel, note("A deployed stack does not expose its agent's definition."));
    else if (agent.error) fill(this.#panel, note("The agent cannot be loaded."), section("Error", agent.error, "error"));
    else fill(this.#panel, about(agent), tools(agent.tools ?? []));
  }
}

/** @param {AgentDescription} agent */
function about({ title, model, offline, instructions, made_by }) {
  return h(
    "section",
    { class: "panel-section" },
    h("h2", {}, title),
    h("p", { class: "quiet" }, `Model: ${model}`, offline && ". Without its key, the offline model answers."),
    h("h3", {}, "Instructions"),
    made_by && h("p", { class: "quiet" }, "Generated for each turn, at least in part, by ", h("code", {}, made_by), ". At the moment:"),
    h("p", { class: "instructions" }, instructions),
  );
}

/** @param {AgentTool[]} all */
function tools(all) {
  return h(
    "section",
    { class: "panel-section" },
    h("h2", {}, all.length === 1 ? "1 tool" : `${all.length} tools`),
    ...all.map(({ name, description, parameters }) =>
      h(
        "details",
        { class: "tool" },
        h("summary", {}, h("span", { class: "tool-name" }, name), h("span", { class: "tool-preview" }, description), icon("chevron")),
        h("div", { class: "fold-body" }, h("p", {}, description), section("Parameters", formatJson(parameters))),
      ),
    ),
  );
}

/** @param {string} text */
function note(text) {
  return h("p", { class: "quiet" }, text);
}
