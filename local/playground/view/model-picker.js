/** Which model answers: a chip under the field, and the dialog that chooses another one. */

import { byId, fill, h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Api } from "../api.js" */
/** @import { ModelOptions, StackInfo } from "../types.js" */

/**
 * @typedef {object} Vendor
 * @property {string} id
 * @property {string} label
 * @property {string} note
 * @property {string[]} fields
 * @property {Record<string, string>} [values]
 */

const FIELDS = /** @type {const} */ ({
  url: ["Address", { type: "url", placeholder: "http://127.0.0.1:8080/v1" }],
  model: ["Model", { type: "text", autocomplete: "off", spellcheck: "false" }],
  key: ["Key", { type: "password", placeholder: "sk-…", autocomplete: "off" }],
});
const PROMISE =
  "The key stays in this tab, until it is closed, and in the memory of the stack on this machine. It is not stored or logged, and answers only what this tab asks or approves.";

export class ModelPicker {
  /** @type {HTMLButtonElement} */
  #chip = byId("model-chip");
  #api;
  #onChosen;

  /** @param {() => Api} api @param {(info: StackInfo) => void} onChosen */
  constructor(api, onChosen) {
    this.#api = api;
    this.#onChosen = onChosen;
    this.#chip.addEventListener("click", () => this.open());
  }

  /** @param {StackInfo | null} info */
  update(info) {
    this.#chip.hidden = !info;
    if (!info) return;
    const label = info.offline ? "Offline model · add a key" : info.model;
    if (this.#chip.textContent === label) return;
    this.#chip.classList.toggle("offline", info.offline);
    this.#chip.title = info.offline ? "Canned answers. Everything around them is real." : "Choose another model";
    fill(this.#chip, icon("spark"), label);
  }

  async open() {
    const options = await this.#api().models();
    if (options) new Dialog(options, (choice) => this.#choose(choice)).open();
  }

  /** @param {Record<string, string> | null} choice */
  async #choose(choice) {
    this.#onChosen(await this.#api().chooseModel(choice));
  }
}

class Dialog {
  #choose;
  #vendors;
  #vendor;
  #fields = h("div", { class: "model-fields" });
  #result = h("p", { class: "settings-result", role: "status" });
  #button = h("button", { class: "button strong" }, "Use this model");
  /** @type {HTMLDialogElement} */
  #dialog = h("dialog", { "aria-labelledby": "model-title", close: () => this.#dialog.remove() });

  /** @param {ModelOptions} options @param {(choice: Record<string, string> | null) => Promise<void>} choose */
  constructor(options, choose) {
    this.#choose = choose;
    this.#vendors = vendorsOf(options);
    this.#vendor = this.#vendors.find(({ id }) => id === options.vendor) ?? this.#vendors[0];
    const cancel = h("button", { type: "button", class: "button", click: () => this.#dialog.close() }, "Cancel");
    this.#dialog.append(
      h(
        "form",
        { submit: (/** @type {Event} */ event) => this.#submit(event), autocomplete: "off" },
        h("h2", { id: "model-title" }, "Model"),
        options.agent_model && h("p", { class: "quiet" }, `agent.py names ${options.agent_model}, which wins over a model chosen here.`),
        h(
          "fieldset",
          { class: "vendors" },
          h("legend", { class: "sr-only" }, "Who answers"),
          ...this.#vendors.map((vendor) => this.#option(vendor)),
        ),
        this.#fields,
        this.#result,
        h("div", { class: "dialog-buttons" }, cancel, this.#button),
      ),
    );
    this.#show();
  }

  open() {
    byId("dialogs").append(this.#dialog);
    this.#dialog.showModal();
  }

  /** @param {Vendor} vendor */
  #option(vendor) {
    const change = () => {
      this.#vendor = vendor;
      this.#show();
    };
    const checked = vendor === this.#vendor;
    const radio = h("input", { type: "radio", name: "vendor", value: vendor.label, checked, change });
    return h("label", {}, radio, h("span", {}, h("strong", {}, vendor.label), h("small", {}, vendor.note)));
  }

  #show() {
    const { fields, values = {} } = this.#vendor;
    fill(
      this.#fields,
      ...fields.flatMap((name) => {
        const [label, props] = FIELDS[/** @type {keyof typeof FIELDS} */ (name)];
        const field = h("input", { id: `model-${name}`, name, value: values[name], ...props });
        return [h("label", { for: `model-${name}` }, label), field];
      }),
      fields.includes("key") && h("p", { class: "quiet" }, PROMISE),
    );
    this.#result.textContent = "";
  }

  /** @param {Event} event */
  async #submit(event) {
    event.preventDefault();
    const written = [...this.#fields.querySelectorAll("input")].map(({ name, value }) => [name, value]);
    const { id, values } = this.#vendor;
    this.#button.disabled = true;
    try {
      await this.#choose(id === "stack" ? null : { vendor: id.replace(/:.*/, ""), ...values, ...Object.fromEntries(written) });
      this.#dialog.close();
    } catch (error) {
      this.#result.textContent = /** @type {Error} */ (error).message;
    }
    this.#button.disabled = false;
  }
}

/** @param {ModelOptions} options @returns {Vendor[]} */
function vendorsOf({ has_offline, ollama }) {
  const local = (ollama?.models ?? []).map((model) => ({
    id: `compatible:${model}`,
    label: `Ollama: ${model}`,
    note: "Runs on this machine, without a key",
    fields: [],
    values: { model, url: ollama?.url ?? "" },
  }));
  return [
    has_offline
      ? { id: "stack", label: "Offline model", note: "Canned answers, no key", fields: [] }
      : { id: "stack", label: "As started", note: "The key of your environment", fields: [] },
    ...local,
    { id: "openai", label: "OpenAI", note: "With a key", fields: ["model", "key"], values: { model: "gpt-6-luna" } },
    { id: "anthropic", label: "Anthropic", note: "With a key", fields: ["model", "key"], values: { model: "claude-sonnet-5-5" } },
    { id: "compatible", label: "Another server", note: "Any with OpenAI's Chat Completions", fields: ["url", "model", "key"] },
  ];
}
