/** Questions to the user, asked in a dialog. */

import { codeBlock } from "../markdown/code.js";
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
 * Show a file to copy or to download.
 * @param {string} title
 * @param {{ name: string, source: string }} file
 */
export function showFile(title, { name, source }) {
  const href = URL.createObjectURL(new Blob([source], { type: "text/x-python" }));
  const download = h("a", { class: "button", href, download: name }, `Download ${name}`);
  void ask(title, [codeBlock("python", source)], "Done", { beside: download }).then(() => URL.revokeObjectURL(href));
}

/**
 * Ask whom to be: null when the user thinks better of it, false for themselves.
 * @param {{ name: string, category: string } | undefined} user
 * @returns {Promise<{ name: string, category: string } | false | null>}
 */
export async function askUser(user) {
  const name = h("input", { id: "user-field", value: user?.name ?? "bob", maxlength: 100, autocomplete: "off", spellcheck: "false" });
  const approver = h("input", { id: "approver-field", type: "checkbox", checked: user ? user.category === "approver" : true });
  const note = "This tab then has the chats of that user. An approver also sees what waits in the chats of others. An empty name is you.";
  const content = [
    h("p", { class: "quiet" }, note),
    h("label", { for: "user-field" }, "Name"),
    name,
    h("label", { class: "check", for: "approver-field" }, approver, "An approver"),
  ];
  const answer = ask("Be somebody else", content, "Go on as this user");
  name.select();
  if (!(await answer)) return null;
  const chosen = name.value.trim();
  return chosen ? { name: chosen, category: approver.checked ? "approver" : "" } : false;
}

/**
 * @param {string} title
 * @param {string} text
 * @param {string} yes
 */
export async function confirm(title, text, yes) {
  return ask(title, [h("p", {}, text)], yes, { kind: "danger" });
}

/**
 * @param {string} title
 * @param {Node[]} content
 * @param {string} yes
 * @param {{ kind?: string, beside?: Element }} [how] What is beside the button, in the place of one that cancels.
 * @returns {Promise<boolean>}
 */
function ask(title, content, yes, { kind = "strong", beside } = {}) {
  const dialog = h("dialog", { "aria-labelledby": "ask-title", class: "ask" });
  const cancel = h("button", { type: "button", class: "button", click: () => dialog.close("") }, "Cancel");
  dialog.append(
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "ask-title" }, title),
      ...content,
      h("div", { class: "dialog-buttons" }, beside ?? cancel, h("button", { class: `button ${kind}`, value: "yes" }, yes)),
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
