"""Markdown as a tree of elements, for a page that creates them one by one and parses no HTML.

CommonMark with tables, strikethrough, task lists and bare links. HTML stays text. `python -m local.markdown` reads one
JSON string per line and prints the JSON of its tree: as a separate process it can be killed if it takes too long.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import lex  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import (  # type: ignore[import-untyped]
    Comment,
    Generic,
    Keyword,
    Name,
    Number,
    Operator,
    String,
)
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

Node = str | list[Any]
"""Text, or an element: `[tag, attributes, *children]`."""

LINK_SCHEMES = frozenset({"http", "https", "mailto"})
# Deeper nesting is not realistic, and JSON and the page have limits that a text could exceed.
MAX_DEPTH = 60
MAX_HIGHLIGHTED_CHARS = 50_000
# The page has its own h1. Headings below it never skip a level, as assistive technology expects: `level` is the text's.
HIGHEST_HEADING, LOWEST_HEADING = 2, 6
KINDS = (
    (Comment, "comment"),
    (String, "string"),
    (Number, "number"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Name.Tag, "keyword"),
    (Name.Function, "call"),
    (Name.Class, "call"),
    (Name.Builtin, "call"),
    (Name.Decorator, "call"),
    (Name.Attribute, "call"),
    (Generic.Inserted, "inserted"),
    (Generic.Deleted, "deleted"),
)
_BARE_URL = re.compile(r"https?://[^\s<>\"`]+")
_SENTENCE_END = ".,;:!?'*_~"
_TASK = re.compile(r"\[([ xX])\]\s+")


def render(text: str) -> list[Node]:
    """Return the blocks of a text."""
    tokens = _PARSER.parse(text)
    _rank_headings(tokens)
    return _tree(tokens)


def _rank_headings(tokens: Iterable[Token]) -> None:
    above: list[int] = []
    for token in tokens:
        if token.type == "heading_open":
            level = int(token.tag[1:])
            above = [other for other in above if other < level]
            token.attrs["level"] = level
            token.tag = f"h{min(HIGHEST_HEADING + len(above), LOWEST_HEADING)}"
            above.append(level)


def _is_web_link(url: str) -> bool:
    try:
        return urlsplit(url).scheme in LINK_SCHEMES
    except ValueError:
        return False


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.validateLink = _is_web_link  # type: ignore[method-assign]  # the documented way to change it
    return parser


_PARSER = _parser()


def _tree(tokens: Iterable[Token]) -> list[Node]:
    root: list[Any] = ["root", {}]
    path = [root]
    too_deep = 0
    for token in tokens:
        if token.hidden:  # the paragraph of a tight list
            continue
        if token.nesting == 1:
            if too_deep or len(path) > MAX_DEPTH:
                too_deep += 1
                continue
            element = _element(token)
            path[-1].append(element)
            path.append(element)
        elif token.nesting == -1:
            if too_deep:
                too_deep -= 1
            else:
                path.pop()
        else:
            path[-1].extend(_leaf(token, path))
    return root[2:]


def _leaf(token: Token, path: list[list[Any]]) -> Iterable[Node]:
    match token.type:
        case "inline":
            _take_task_mark(token, path)
            yield from _tree(token.children or [])
        case "text" if not any(element[0] == "a" for element in path):
            yield from _with_links(token.content)
        case "softbreak":
            yield "\n"
        case "hardbreak" | "hr":
            yield [token.tag, {}]
        case "code_inline":
            yield ["code", {}, token.content]
        case "image":  # a link, which loads nothing until somebody follows it
            yield ["a", {"href": token.attrs["src"]}, token.content or "picture"]
        case "fence" | "code_block":
            language = (token.info.split() or [""])[0]
            yield ["pre", {"language": language}, *highlight(token.content.removesuffix("\n"), language)]
        case _:
            yield token.content


def _element(token: Token) -> list[Any]:
    match token.type:
        case "heading_open":
            return [token.tag, {"level": token.attrs["level"]}]
        case "link_open":
            return ["a", {"href": token.attrs["href"]}]
        case "ordered_list_open":
            return ["ol", {"start": token.attrs["start"]} if "start" in token.attrs else {}]
        case "th_open" | "td_open":
            align = str(token.attrs.get("style", "")).removeprefix("text-align:")
            return [token.tag, {"align": align} if align else {}]
        case "s_open":
            return ["del", {}]
        case _:
            return [token.tag, {}]


def _take_task_mark(inline: Token, path: list[list[Any]]) -> None:
    """Turn `[x] ` at the start of a list item into an attribute of the item."""
    *_, item = (element for element in path if element[0] != "p")
    starts_item = item[0] == "li" and (item is path[-1] or item[2:] == [path[-1]])
    if not starts_item or len(path[-1]) > 2 or not inline.children:
        return
    first = inline.children[0]
    if first.type == "text" and (mark := _TASK.match(first.content)):
        item[1]["task"] = "open" if mark[1] == " " else "done"
        first.content = first.content[mark.end() :]


def _with_links(text: str) -> Iterator[Node]:
    at = 0
    for found in _BARE_URL.finditer(text):
        url = _without_sentence_end(found[0])
        if start := text[at : found.start()]:
            yield start
        yield ["a", {"href": url}, url]
        at = found.start() + len(url)
    if rest := text[at:]:
        yield rest


def _without_sentence_end(url: str) -> str:
    """Remove punctuation and unopened parentheses at the end: they belong to the sentence around the address."""
    url = url.rstrip(_SENTENCE_END)
    unopened = max(0, url.count(")") - url.count("("))
    trailing = len(url) - len(url.rstrip(")"))
    return url[: len(url) - min(unopened, trailing)].rstrip(_SENTENCE_END)


@lru_cache(maxsize=256)  # the blocks above the one that is being written stay the same
def highlight(code: str, language: str) -> tuple[Node, ...]:
    """Return code as text and `span` elements of a kind. Code of an unknown language stays text."""
    if not language or len(code) > MAX_HIGHLIGHTED_CHARS:
        return (code,)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return (code,)
    pieces: list[tuple[str, str]] = []
    for token_type, value in lex(code, lexer):
        kind = next((kind for group, kind in KINDS if token_type in group), "")
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = (kind, pieces[-1][1] + value)
        else:
            pieces.append((kind, value))
    return tuple(["span", {"kind": kind}, value] if kind else value for kind, value in pieces)


def main() -> None:
    """Answer each line with a line."""
    for line in sys.stdin:
        print(json.dumps(render(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
