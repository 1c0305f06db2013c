/** Blocks to DOM nodes, and a view that keeps up with a text that is still being written. */

import { splitBlocks } from "./blocks.js";
import { codeBlock } from "./code.js";
import { renderInline } from "./inline.js";

/** @import { Block, Item, List, Table } from "./blocks.js" */

/** A text that grows. Each update renders only what can still change: the last blocks. */
export class MarkdownView {
  element = document.createElement("div");
  #text = "";
  /** @type {{ start: number, source: string, node: Node }[]} */
  #blocks = [];

  constructor() {
    this.element.className = "markdown";
  }

  /** @param {string} text */
  update(text) {
    if (text === this.#text) return;
    // The last line may be half written and still turn out to belong to the block before its own: two blocks are open.
    const kept = text.startsWith(this.#text) ? Math.max(0, this.#blocks.length - 2) : 0;
    this.#text = text;
    const from = kept ? (this.#blocks[kept]?.start ?? 0) : 0;
    const opened = cut(text, from);
    const old = this.#blocks.splice(kept);
    opened.forEach(({ start, source, block }, index) => {
      const shown = old[index];
      const node = shown?.source === source ? shown.node : this.#put(renderBlock(block), shown?.node);
      this.#blocks.push({ start, source, node });
    });
    for (const { node } of old.slice(opened.length)) /** @type {ChildNode} */ (node).remove();
  }

  /** @param {Node} node @param {Node | undefined} instead @returns {Node} */
  #put(node, instead) {
    if (instead) this.element.replaceChild(node, instead);
    else this.element.append(node);
    return node;
  }
}

/**
 * The blocks of a text from a position on, with the text that each was made of.
 * @param {string} text
 * @param {number} from
 */
function cut(text, from) {
  const rest = text.slice(from);
  /** @type {number[]} Where each line starts. */
  const lines = [0];
  for (let at = rest.indexOf("\n"); at >= 0; at = rest.indexOf("\n", at + 1)) lines.push(at + 1);
  const found = splitBlocks(rest);
  return found.map(({ block, line }, index) => {
    const end = index + 1 < found.length ? lines[found[index + 1].line] : rest.length;
    return { block, start: from + lines[line], source: rest.slice(lines[line], end) };
  });
}

/** @param {Block} block @returns {HTMLElement} */
export function renderBlock(block) {
  switch (block.type) {
    case "heading":
      // The page has its own h1 and h2.
      return make(`h${Math.min(block.level + 2, 6)}`, renderInline(block.text), { level: String(block.level) });
    case "code":
      return codeBlock(block);
    case "rule":
      return make("hr", []);
    case "quote":
      return make("blockquote", block.blocks.map(renderBlock));
    case "list":
      return renderList(block);
    case "table":
      return renderTable(block);
    default:
      return make("p", renderInline(block.text));
  }
}

/** @param {List} list */
function renderList(list) {
  const element = make(
    list.start === null ? "ul" : "ol",
    list.items.map((item) => renderItem(item, list.loose)),
  );
  if (list.start !== null && list.start !== 1) element.setAttribute("start", String(list.start));
  return element;
}

/** @param {Item} item @param {boolean} loose */
function renderItem(item, loose) {
  const children = item.blocks.flatMap((block) =>
    block.type === "paragraph" && !loose ? renderInline(block.text) : [renderBlock(block)],
  );
  if (item.checked !== null) children.unshift(checkbox(item.checked));
  return make("li", children, item.checked === null ? {} : { task: "" });
}

/** @param {boolean} checked */
function checkbox(checked) {
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", checked, disabled: true });
  box.setAttribute("aria-label", checked ? "Done" : "To do");
  return box;
}

/** @param {Table} table */
function renderTable({ head, rows, aligns }) {
  /** @param {string} tag @param {string[]} texts */
  const row = (tag, texts) =>
    make(
      "tr",
      texts.map((text, column) => make(tag, renderInline(text), aligns[column] ? { align: aligns[column] } : {})),
    );
  const body = make(
    "tbody",
    rows.map((texts) => row("td", texts)),
  );
  const table = make("table", [make("thead", [row("th", head)]), body]);
  const frame = make("div", [table]);
  frame.className = "table-frame";
  frame.tabIndex = 0; // a wide table scrolls, and the keyboard must be able to scroll it
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", "Table");
  return frame;
}

/** @param {string} tag @param {Node[]} children @param {Record<string, string>} [data] */
function make(tag, children, data = {}) {
  const element = document.createElement(tag);
  element.append(...children);
  Object.assign(element.dataset, data);
  return element;
}
