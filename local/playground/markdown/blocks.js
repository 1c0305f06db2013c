/** Cuts Markdown into blocks. Pure: text in, a tree of plain objects out. */

/**
 * @typedef {{ type: "paragraph", text: string }} Paragraph
 * @typedef {{ type: "heading", level: number, text: string }} Heading
 * @typedef {{ type: "code", language: string, text: string, closed: boolean }} Code
 * @typedef {{ type: "rule" }} Rule
 * @typedef {{ type: "quote", blocks: Block[] }} Quote
 * @typedef {{ blocks: Block[], checked: boolean | null }} Item
 * @typedef {{ type: "list", start: number | null, loose: boolean, items: Item[] }} List
 * @typedef {"left" | "center" | "right" | ""} Align
 * @typedef {{ type: "table", aligns: Align[], head: string[], rows: string[][] }} Table
 * @typedef {(Paragraph | Heading | Code | Rule | Quote | List | Table)} Block
 */

const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$/;
/** At least three: a shorter line is more often a list that is still being written. */
const SETEXT = /^ {0,3}(={3,}|-{3,})[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|$)/;
const DELIMITER_ROW = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
/** Nobody writes deeper, and a page cannot be as deep as a text can ask for. */
const MAX_DEPTH = 16;
const INDENTED = /^(?: {4}|\t)/;

/**
 * @param {string} source
 * @param {number} [depth]
 * @returns {Block[]}
 */
export function parseBlocks(source, depth = 0) {
  return splitBlocks(source, depth).map(({ block }) => block);
}

/**
 * Cut the text and tell where in it each block starts.
 * @param {string} source
 * @param {number} [depth]
 */
export function splitBlocks(source, depth = 0) {
  const lines = source.split("\n");
  /** @type {{ block: Block, line: number }[]} */
  const found = [];
  for (let line = 0; line < lines.length;) {
    if (isBlank(lines[line])) {
      line++;
      continue;
    }
    const [block, next] = read(lines, line, depth);
    found.push({ block, line });
    line = next;
  }
  return found;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[Block, number]} The block and the line after it.
 */
function read(lines, at, depth) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: (heading[2] ?? "").trim() }, at + 1];
  if (FENCE.test(line)) return readFence(lines, at);
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return readList(lines, at, depth);
  if (startsTable(lines, at)) return readTable(lines, at);
  if (INDENTED.test(line)) return readIndented(lines, at);
  return readParagraph(lines, at);
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function readFence(lines, at) {
  const [, indent, fence, info] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ ]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end++;
  const text = lines.slice(at + 1, end).map((line) => outdent(line, indent.length));
  const language = info.trim().split(/\s+/)[0];
  return [{ type: "code", language, text: text.join("\n"), closed: end < lines.length }, end + 1];
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function readIndented(lines, at) {
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || isBlank(lines[end]))) end++;
  const text = lines
    .slice(at, end)
    .map((line) => outdent(line, 4))
    .join("\n")
    .trimEnd();
  return [{ type: "code", language: "", text, closed: true }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function readQuote(lines, at, depth) {
  let end = at;
  // A line without the mark still belongs to the paragraph that a quote ends with.
  while (
    end < lines.length &&
    (QUOTE.test(lines[end]) || (end > at && !isBlank(lines[end]) && !interrupts(lines, end)))
  )
    end++;
  const text = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: parseBlocks(text.join("\n"), depth + 1) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function readList(lines, at, depth) {
  const first = marker(lines[at]);
  /** @type {Item[]} */
  const items = [];
  let loose = false;
  let next = at;
  while (next < lines.length && sameList(lines[next], first)) {
    const [text, end] = readItem(lines, next);
    const trailing = text.length - text.findLastIndex((line) => !isBlank(line)) - 1;
    const blocks = parseBlocks(text.join("\n"), depth + 1);
    items.push(toItem(blocks));
    const spaced = text.slice(0, text.length - trailing).some(isBlank) && blocks.length > 1;
    next = end;
    loose ||= spaced || (trailing > 0 && next < lines.length && sameList(lines[next], first));
  }
  return [{ type: "list", start: first.start, loose, items }, next];
}

/**
 * The lines of one item without its indent, and the line after it.
 * @param {string[]} lines
 * @param {number} at
 * @returns {[string[], number]}
 */
function readItem(lines, at) {
  const { width } = marker(lines[at]);
  const text = [lines[at].slice(width)];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const indented = indentOf(line) >= width;
    if (isBlank(line) || indented) text.push(outdent(line, width));
    else if (isBlank(lines[end - 1]) || interrupts(lines, end)) break;
    else text.push(line.trimStart());
  }
  return [text, end];
}

/** @param {Block[]} blocks @returns {Item} */
function toItem(blocks) {
  const first = blocks[0];
  const box = first?.type === "paragraph" ? /^\[([ xX])\]\s+/.exec(first.text) : null;
  if (!box || first?.type !== "paragraph") return { blocks, checked: null };
  return { blocks: [{ ...first, text: first.text.slice(box[0].length) }, ...blocks.slice(1)], checked: box[1] !== " " };
}

/** @param {string} line */
function marker(line) {
  const [, indent, sign, gap = " ", rest = ""] = /** @type {RegExpExecArray} */ (ITEM.exec(line));
  const spaces = !rest || gap.length > 4 ? 1 : gap.length;
  const ordered = /\d/.test(sign);
  return {
    width: indent.length + sign.length + spaces,
    kind: sign.at(-1),
    start: ordered ? Number.parseInt(sign, 10) : null,
  };
}

/** @param {string} line @param {{ kind: string | undefined }} first */
function sameList(line, first) {
  return ITEM.test(line) && !RULE.test(line) && marker(line).kind === first.kind;
}

/** @param {string[]} lines @param {number} at */
function startsTable(lines, at) {
  const [head, row] = [lines[at], lines[at + 1] ?? ""];
  return head.includes("|") && row.includes("-") && DELIMITER_ROW.test(row) && cells(head).length === cells(row).length;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function readTable(lines, at) {
  const aligns = cells(lines[at + 1]).map(alignOf);
  const head = cells(lines[at]);
  /** @type {string[][]} */
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end); end++) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return [{ type: "table", aligns, head, rows }, end];
}

/** @param {string} line */
function cells(line) {
  const trimmed = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** @param {string} cell @returns {Align} */
function alignOf(cell) {
  const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
  if (left && right) return "center";
  return right ? "right" : left ? "left" : "";
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function readParagraph(lines, at) {
  let end = at + 1;
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    const underline = SETEXT.exec(lines[end]);
    if (underline) {
      const level = underline[1][0] === "=" ? 1 : 2;
      return [{ type: "heading", level, text: paragraphText(lines, at, end) }, end + 1];
    }
    if (interrupts(lines, end)) break;
  }
  return [{ type: "paragraph", text: paragraphText(lines, at, end) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} end */
function paragraphText(lines, at, end) {
  return lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
}

/** Whether a line ends the paragraph before it. @param {string[]} lines @param {number} at */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  // Only a list that starts with 1 does: "in\n1984. Then" is a sentence. In a list, any next item does.
  if (item)
    return Boolean(item[4]) && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2]) || ITEM.test(lines[at - 1] ?? ""));
  return HEADING.test(line) || FENCE.test(line) || RULE.test(line) || QUOTE.test(line) || startsTable(lines, at);
}

/** @param {string} line */
function isBlank(line) {
  return line.trim() === "";
}

/** How far a line is indented; a tab counts as four. @param {string} line */
function indentOf(line) {
  const space = /^[ \t]*/.exec(line)?.[0] ?? "";
  return space.replaceAll("\t", "    ").length;
}

/** Take indent away, as far as there is some. @param {string} line @param {number} width */
function outdent(line, width) {
  let at = 0;
  for (let left = width; left > 0 && (line[at] === " " || line[at] === "\t"); at++) left -= line[at] === "\t" ? 4 : 1;
  return line.slice(at);
}
