/**
 * Inline Markdown to DOM nodes: code, emphasis, links. Text stays text: nothing here ever parses HTML.
 *
 * Follows CommonMark's own strategy: one pass collects pieces and delimiters, a second one pairs the delimiters.
 */

import { safeUrl } from "./urls.js";

/**
 * @typedef {{ mark: string, length: number, opens: boolean, closes: boolean, node: Text }} Delimiter
 * @typedef {{ delimiter?: Delimiter, node: Node }} Piece
 */

const SPECIAL = /[\\`*_~[\]!<\n]|https?:\/\//g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const AUTOLINK = /<([a-z][a-z0-9+.-]*:[^\s<>]*|[^\s<>@]+@[^\s<>@]+\.[^\s<>@]+)>/iy;
const BARE_URL = /https?:\/\/[^\s<>"`]+/iy;
const DESTINATION =
  /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const TAGS = /** @type {const} */ ({ 1: "em", 2: "strong" });

/**
 * @param {string} source
 * @returns {Node[]}
 */
export function renderInline(source) {
  return new Inline(source).render();
}

class Inline {
  #source;
  #at = 0;
  /** @type {Piece[]} */
  #pieces = [];
  /** @type {{ index: number, image: boolean, active: boolean }[]} Brackets that wait for their end. */
  #brackets = [];
  /** @type {Set<number>} Lengths of backtick runs that nothing closes any more. */
  #unclosed = new Set();

  /** @param {string} source */
  constructor(source) {
    this.#source = source;
  }

  render() {
    while (this.#at < this.#source.length) this.#next();
    return joined(this.#pieces, 0);
  }

  #next() {
    SPECIAL.lastIndex = this.#at;
    const found = SPECIAL.exec(this.#source);
    const end = found ? found.index : this.#source.length;
    if (end > this.#at) this.#text(this.#source.slice(this.#at, end));
    this.#at = end;
    if (!found) return;
    const sign = found[0];
    const handled =
      (sign === "\\" && this.#escape()) ||
      (sign === "`" && this.#code()) ||
      ("*_~".includes(sign) && this.#delimiter(sign)) ||
      (sign === "!" && this.#openBracket(true)) ||
      (sign === "[" && this.#openBracket(false)) ||
      (sign === "]" && this.#closeBracket()) ||
      (sign === "<" && this.#autolink()) ||
      (sign === "\n" && this.#lineBreak()) ||
      (sign.length > 1 && this.#bareUrl());
    if (!handled) this.#text(this.#take(1));
  }

  #escape() {
    const escaped = this.#source[this.#at + 1] ?? "";
    if (escaped === "\n") this.#push(document.createElement("br"));
    else if (ESCAPABLE.test(escaped)) this.#text(escaped);
    else return false;
    this.#at += 2;
    return true;
  }

  #code() {
    const fence = run(this.#source, this.#at, "`");
    const start = this.#at + fence;
    const end = this.#unclosed.has(fence) ? -1 : closingRun(this.#source, start, fence);
    if (end < 0) {
      this.#unclosed.add(fence);
      this.#text(this.#take(fence));
      return true;
    }
    const text = this.#source.slice(start, end).replaceAll("\n", " ");
    const padded = /^ .*[^ ].* $/s.test(text);
    this.#push(element("code", [new Text(padded ? text.slice(1, -1) : text)]));
    this.#at = end + fence;
    return true;
  }

  /** @param {string} mark */
  #delimiter(mark) {
    const length = run(this.#source, this.#at, mark);
    if (mark === "~" && length !== 2) return false;
    const [before, after] = [this.#source[this.#at - 1] ?? " ", this.#source[this.#at + length] ?? " "];
    const left = flanks(after, before);
    const right = flanks(before, after);
    // An underscore inside a word is a letter of it: snake_case.
    const opens = left && (mark !== "_" || !right || isPunctuation(before));
    const closes = right && (mark !== "_" || !left || isPunctuation(after));
    const node = new Text(this.#take(length));
    this.#pieces.push({ node, delimiter: { mark, length, opens, closes, node } });
    return true;
  }

  /** @param {boolean} image */
  #openBracket(image) {
    if (image && this.#source[this.#at + 1] !== "[") return false;
    this.#brackets.push({ index: this.#pieces.length, image, active: true });
    this.#text(this.#take(image ? 2 : 1));
    return true;
  }

  /**
   * A link, if a bracket is open and an address follows. An image becomes a link as well: loading it would tell
   * another server what is being read here.
   */
  #closeBracket() {
    const open = this.#brackets.pop();
    DESTINATION.lastIndex = this.#at + 1;
    const found = open?.active && DESTINATION.exec(this.#source);
    const url = found && safeUrl((found[1] ?? found[2] ?? "").replace(/\\([!-/:-@[-`{-~])/g, "$1"));
    if (!open || !url) return false;
    this.#at = DESTINATION.lastIndex;
    const label = joined(this.#pieces.splice(open.index), 1);
    const inLink = this.#brackets.some((bracket) => bracket.active && !bracket.image);
    if (open.image && inLink) label.forEach((node) => this.#push(node));
    else this.#push(link(url, label.length ? label : [new Text(url)]));
    // A link holds no other link: what is still open around it stays text.
    if (!open.image) for (const bracket of this.#brackets) bracket.active &&= bracket.image;
    return true;
  }

  #autolink() {
    AUTOLINK.lastIndex = this.#at;
    const found = AUTOLINK.exec(this.#source);
    const url = found && safeUrl(/^[a-z][a-z0-9+.-]*:/i.test(found[1]) ? found[1] : `mailto:${found[1]}`);
    if (!found || !url) return false;
    this.#push(link(url, [new Text(found[1])]));
    this.#at = AUTOLINK.lastIndex;
    return true;
  }

  #bareUrl() {
    BARE_URL.lastIndex = this.#at;
    const found = BARE_URL.exec(this.#source)?.[0].replace(/[.,;:!?*_~'"\]]+$/, "") ?? "";
    const text = found.endsWith(")") && !found.includes("(") ? found.slice(0, -1) : found;
    const url = safeUrl(text);
    if (!url || this.#brackets.length) return false;
    this.#push(link(url, [new Text(text)]));
    this.#at += text.length;
    return true;
  }

  #lineBreak() {
    const before = this.#pieces.at(-1)?.node;
    const hard = before instanceof Text && / {2,}$/.test(before.data);
    if (before instanceof Text) before.data = before.data.trimEnd();
    this.#at++;
    if (hard) this.#push(document.createElement("br"));
    else this.#text("\n");
    return true;
  }

  /** @param {number} length */
  #take(length) {
    this.#at += length;
    return this.#source.slice(this.#at - length, this.#at);
  }

  /** @param {string} text */
  #text(text) {
    this.#push(new Text(text));
  }

  /** @param {Node} node */
  #push(node) {
    this.#pieces.push({ node });
  }
}

/**
 * Pair the delimiters of a run of pieces and return its nodes.
 * @param {Piece[]} pieces
 * @param {number} start How many leading pieces are dropped: an opening bracket.
 */
function joined(pieces, start) {
  /** @type {Piece[]} */
  const done = [];
  /** @type {Map<string, number>} Below these nothing pairs with such a closer: looked through once, not each time. */
  const floors = new Map();
  for (const piece of pieces.slice(start)) {
    const closer = piece.delimiter;
    while (closer?.closes && closer.length) {
      const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
      const at = findOpener(done, closer, floors.get(kind) ?? 0);
      if (at < 0) {
        floors.set(kind, done.length);
        break;
      }
      wrap(done, at, closer);
      for (const [key, floor] of floors) floors.set(key, Math.min(floor, done.length));
    }
    if (!closer || closer.length) done.push(piece);
  }
  return done.map(({ node }) => node);
}

/** @param {Piece[]} done @param {Delimiter} closer @param {number} floor */
function findOpener(done, closer, floor) {
  for (let at = done.length - 1; at >= floor; at--) {
    const { delimiter } = done[at];
    if (delimiter?.opens && pairs(delimiter, closer)) return at;
  }
  return -1;
}

/** @param {Delimiter} opener @param {Delimiter} closer */
function pairs(opener, closer) {
  if (opener.mark !== closer.mark || !opener.length) return false;
  const both = (opener.opens && opener.closes) || (closer.opens && closer.closes);
  return !(both && (opener.length + closer.length) % 3 === 0 && (opener.length % 3 || closer.length % 3));
}

/**
 * Put what follows an opener into an element.
 * @param {Piece[]} done
 * @param {number} at
 * @param {Delimiter} closer
 */
function wrap(done, at, closer) {
  const opener = /** @type {Delimiter} */ (done[at].delimiter);
  const size = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
  const inner = done.splice(at + 1).map(({ node }) => node);
  const tag = closer.mark === "~" ? "del" : TAGS[/** @type {1 | 2} */ (size)];
  for (const side of [opener, closer]) {
    side.length -= size;
    side.node.data = side.mark.repeat(side.length);
  }
  if (!opener.length) done.pop();
  done.push({ node: element(tag, inner) });
}

/** Whether a delimiter leans on the character inside it. @param {string} inside @param {string} outside */
function flanks(inside, outside) {
  if (/\s/.test(inside)) return false;
  return !isPunctuation(inside) || /\s/.test(outside) || isPunctuation(outside);
}

/** @param {string} character */
function isPunctuation(character) {
  return /[\p{P}\p{S}]/u.test(character);
}

/** @param {string} source @param {number} at @param {string} sign */
function run(source, at, sign) {
  let end = at;
  while (source[end] === sign) end++;
  return end - at;
}

/** @param {string} source @param {number} start @param {number} length */
function closingRun(source, start, length) {
  for (let at = source.indexOf("`", start); at >= 0;) {
    const found = run(source, at, "`");
    if (found === length) return at;
    at = source.indexOf("`", at + found);
  }
  return -1;
}

/** @param {string} url @param {Node[]} label */
function link(url, label) {
  const anchor = /** @type {HTMLAnchorElement} */ (element("a", label));
  anchor.href = url;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  return anchor;
}

/** @param {string} tag @param {Node[]} children */
function element(tag, children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
