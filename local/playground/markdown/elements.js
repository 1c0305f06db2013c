/** Trees of rendered Markdown to elements. Only what is listed here can come into the page, whatever the tree says. */

import { codeBlock } from "./code.js";
import { safeUrl } from "./urls.js";

/** @typedef {string | [tag: string, attributes: Record<string, string | number>, ...children: any[]]} Tree */

const TAGS = new Set(
  "a blockquote br code del em h2 h3 h4 h5 h6 hr li ol p strong table tbody td th thead tr ul".split(" "),
);

/** @param {Tree} tree @returns {Node} */
export function buildElement(tree) {
  if (typeof tree === "string") return new Text(tree);
  const [tag, attributes, ...children] = tree;
  if (tag === "pre") return codeBlock(String(attributes.language ?? ""), children);
  if (!TAGS.has(tag)) return new Text(children.filter((child) => typeof child === "string").join(""));
  const element = document.createElement(tag);
  element.append(...children.map(buildElement));
  if (tag === "a") return asLink(/** @type {HTMLAnchorElement} */ (element), String(attributes.href));
  if (tag === "table") return inFrame(element);
  if (tag === "ol" && attributes.start !== undefined) element.setAttribute("start", String(Number(attributes.start)));
  if (attributes.task) element.prepend(checkbox(attributes.task === "done"));
  for (const name of ["align", "level", "task"]) if (attributes[name]) element.dataset[name] = String(attributes[name]);
  return element;
}

/** @param {HTMLAnchorElement} element @param {string} href @returns {Node} */
function asLink(element, href) {
  const url = safeUrl(href);
  if (!url) return new Text(element.textContent ?? "");
  Object.assign(element, { href: url, target: "_blank", rel: "noopener noreferrer nofollow" });
  return element;
}

/** @param {boolean} checked */
function checkbox(checked) {
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", checked, disabled: true });
  box.setAttribute("aria-label", checked ? "Done" : "To do");
  return box;
}

/** A wide table scrolls, and the keyboard must be able to scroll it. @param {HTMLElement} table */
function inFrame(table) {
  const frame = document.createElement("div");
  frame.className = "table-frame";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", "Table");
  frame.append(table);
  return frame;
}
