/** Colours for code: comments, strings, numbers and keywords, as far as a few lines can tell them apart. */

const KEYWORDS = new Set(
  `abstract and as async await break case catch class const continue def default delete do elif else enum except export
  extends false finally fn for from func function if implements import in instanceof interface is lambda let match
  mut new nil none not null or package pass private protected pub public raise readonly return self static struct super
  switch then this throw trait true try type typeof undefined use var void while with yield
  select insert update into values where group order by having limit join left right inner outer on create table
  set echo fi done esac`.split(/\s+/),
);
const WITH_HASH = new Set([
  "python",
  "py",
  "bash",
  "sh",
  "shell",
  "zsh",
  "yaml",
  "yml",
  "toml",
  "ruby",
  "rb",
  "dockerfile",
  "makefile",
  "r",
  "perl",
]);
const WITH_DASHES = new Set(["sql", "lua", "haskell"]);
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "output", "markdown", "md", "diff", "csv"]);
const STRING = /"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`/.source;
const NUMBER = /\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b/.source;
const WORD = /[A-Za-z_$][\w$]*/.source;

/**
 * @param {string} text
 * @param {string} language
 * @returns {Node[]}
 */
export function highlight(text, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return [new Text(text)];
  /** @type {Node[]} */
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(tokens(name))) {
    const kind = kindOf(found, text);
    if (!kind) continue;
    if (found.index > at) nodes.push(new Text(text.slice(at, found.index)));
    nodes.push(coloured(kind, found[0]));
    at = found.index + found[0].length;
  }
  return [...nodes, new Text(text.slice(at))];
}

/** @param {string} language */
function tokens(language) {
  const line = WITH_HASH.has(language) ? "#[^\\n]*" : WITH_DASHES.has(language) ? "--[^\\n]*" : "//[^\\n]*";
  const triple = language === "python" || language === "py" ? `"""[^]*?"""|'''[^]*?'''|` : "";
  return new RegExp(
    `(?<comment>${line}|/\\*[^]*?\\*/)|(?<string>${triple}${STRING})|(?<number>${NUMBER})|(?<word>${WORD})`,
    "g",
  );
}

/** @param {RegExpMatchArray} found @param {string} text */
function kindOf(found, text) {
  const { comment, string, number, word } = found.groups ?? {};
  if (comment) return "comment";
  if (string) return "string";
  if (number) return "number";
  if (KEYWORDS.has(word) || (KEYWORDS.has(word.toLowerCase()) && word === word.toUpperCase())) return "keyword";
  return text[(found.index ?? 0) + word.length] === "(" ? "call" : "";
}

/** @param {string} kind @param {string} text */
function coloured(kind, text) {
  const span = document.createElement("span");
  span.className = `code-${kind}`;
  span.textContent = text;
  return span;
}
