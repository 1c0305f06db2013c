/** Markdown to elements: CommonMark with tables, strikethrough, task lists and bare links. HTML stays text. */

import { MarkdownIt } from "../vendor/markdown.js";
import { h } from "../view/dom.js";
import { codeBlock } from "./code.js";
import { safeUrl } from "./urls.js";

/** @typedef {any} Token One of markdown-it's. Their tags are the parser's: none comes from the text. */

const TASK = /^\[([ xX])\]\s+/;
/** The page has its own h1. */
const LOWEST_HEADING = 6;

const parser = new MarkdownIt({ html: false, linkify: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = (/** @type {string} */ url) => safeUrl(url) !== null;

/** @param {string} text @returns {{ tokens: Token[], hasDefinitions: boolean }} */
export function parse(text) {
  const environment = /** @type {{ references?: object }} */ ({});
  const tokens = parser.parse(text, environment);
  return { tokens, hasDefinitions: environment.references !== undefined };
}

/**
 * The elements of parsed blocks, one for each.
 * @param {Token[]} tokens
 * @param {number[]} levels Of the headings before them, in their order.
 */
export function buildElements(tokens, levels) {
  const headings = levels.reduce(below, []);
  const root = document.createDocumentFragment();
  /** @type {(Element | DocumentFragment)[]} */
  const path = [root];
  const parentOf = () => /** @type {Element} */ (path.at(-1));
  const place = (/** @type {Token} */ token) => {
    if (token.hidden) return; // the paragraph of a tight list
    if (token.type === "inline") {
      takeTaskMark(token, parentOf());
      token.children.forEach(place);
    } else if (token.nesting < 0) path.pop();
    else if (token.nesting === 0) parentOf().append(leaf(token));
    else {
      if (token.type === "heading_open") headings.splice(0, Infinity, ...below(headings, levelOf(token)));
      const element = opened(token, headings.length);
      parentOf().append(token.tag === "table" ? inFrame(element) : element);
      path.push(element);
    }
  };
  tokens.forEach(place);
  return root;
}

/** The levels of a heading and of those that it is below. @param {number[]} above @param {number} level */
function below(above, level) {
  return [...above.filter((other) => other < level), level];
}

/** @param {Token} token */
function levelOf(token) {
  return Number(token.tag.slice(1));
}

/** @param {Token} token @param {number} depth Of a heading: none skips a level, as assistive technology expects. */
function opened(token, depth) {
  switch (token.type) {
    case "heading_open":
      return h(/** @type {"h2"} */ (`h${Math.min(1 + depth, LOWEST_HEADING)}`), { "data-level": levelOf(token) });
    case "link_open":
      return link(token.attrGet("href"));
    case "ordered_list_open":
      return h("ol", { start: token.attrGet("start") });
    case "th_open":
    case "td_open":
      return h(token.tag, { "data-align": token.attrGet("style")?.replace("text-align:", "") });
    case "s_open":
      return h("del");
    default:
      return h(token.tag);
  }
}

/** @param {Token} token @returns {Node | string} */
function leaf(token) {
  switch (token.type) {
    case "softbreak":
      return "\n";
    case "hardbreak":
    case "hr":
      return h(token.tag);
    case "code_inline":
      return h("code", {}, token.content);
    case "image": // a link, which loads nothing until somebody follows it
      return link(token.attrGet("src"), token.content || "picture");
    case "fence":
    case "code_block":
      return codeBlock(token.info.trim().split(/\s/)[0], token.content.replace(/\n$/, ""));
    default:
      return token.content;
  }
}

/** @param {string} address @param {...string} text */
function link(address, ...text) {
  return h("a", { href: safeUrl(address), target: "_blank", rel: "noopener noreferrer nofollow" }, ...text);
}

/** Turn `[x] ` at the start of a list item into a checkbox. @param {Token} inline @param {Element} parent */
function takeTaskMark({ children: [first] }, parent) {
  const item = parent.matches("li, li > p") && parent.closest("li");
  const mark = item && !item.textContent && first?.type === "text" && TASK.exec(first.content);
  if (!mark) return;
  const checked = mark[1] !== " ";
  first.content = first.content.slice(mark[0].length);
  item.dataset.task = checked ? "done" : "open";
  item.prepend(h("input", { type: "checkbox", checked, disabled: true, "aria-label": checked ? "Done" : "To do" }));
}

/** A wide table scrolls, and the keyboard must be able to scroll it. @param {Element} table */
function inFrame(table) {
  return h("div", { class: "table-frame", tabindex: 0, role: "group", "aria-label": "Table" }, table);
}
