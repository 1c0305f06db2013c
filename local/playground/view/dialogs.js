/** Questions to the user, asked in a dialog. */

import { byId, h } from "./dom.js";

/**
 * Ask for a name. Returns null when the user thinks better of it.
 * @param {string} name
 * @returns {Promise<string | null>}
 */
export async function askName(name) {
  const field = h("input", {
    id: "rename-field",
    name: "name",
    value: name,
    maxlength: 120,
    required: true,
    autocomplete: "off",
  });
  const label = h("label", { for: "rename-field" }, "Name");
  const answer = ask("Rename chat", [label, field], "Rename");
  field.select();
  return (await answer) ? field.value.trim() || null : null;
}

/**
 * Ask what the user thinks of an answer. Returns null when they think better of it.
 * @param {string} text
 * @returns {Promise<string | null>}
 */
export async function askComment(text) {
  const field = h("textarea", { id: "comment-field", name: "comment", maxlength: 2000, rows: 4 }, text);
  const label = h("label", { for: "comment-field" }, "What was good or bad about it?");
  return (await ask("Comment on this answer", [label, field], "Save")) ? field.value.trim() : null;
}

/**
 * @param {string} title
 * @param {string} text
 * @param {string} yes
 */
export async function confirm(title, text, yes) {
  return ask(title, [h("p", {}, text)], yes, "danger");
}

/**
 * @param {string} title
 * @param {Node[]} content
 * @param {string} yes
 * @param {string} [kind]
 * @returns {Promise<boolean>}
 */
function ask(title, content, yes, kind = "strong") {
  const dialog = h("dialog", { "aria-labelledby": "ask-title", class: "ask" });
  const cancel = h("button", { type: "button", class: "button", click: () => dialog.close("") }, "Cancel");
  dialog.append(
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "ask-title" }, title),
      ...content,
      h("div", { class: "dialog-buttons" }, cancel, h("button", { class: `button ${kind}`, value: "yes" }, yes)),
    ),
  );
  byId("dialogs").append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}
