"""What a prompt says that can become a tool's argument: numbers, quotes, places, sums, dates, addresses."""

import re
from functools import lru_cache
from typing import NamedTuple

from local.model.legible import legible
from local.model.vocabulary import NOT_PLACES

_QUOTE = re.compile(r"\"([^\"]{1,300})\"|“([^”]{1,300})”|`([^`]{1,300})`|(?<!\w)'([^']{1,300})'(?!\w)")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:\d{2})?)?\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}")
_URL = re.compile(r"https?://[^\s\"'<>)\]]+")
_ZONE = re.compile(r"\b(?:[A-Z][a-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?|UTC|GMT)\b")
_SUM = re.compile(r"[-(]*\d[\d.,]{0,40}\)*(?:\s*(?:\*\*|[-+*/^%])\s*[-(]*\d[\d.,]{0,40}\)*)+")
_NAME = r"[A-Z][\w'\u2019-]+(?:\s+[A-Z][\w'\u2019-]+)*"
_PLACES = re.compile(
    rf"\b(?:in|at|for|from|to|near|of)\s+(?:the\s+)?({_NAME}(?:(?:,\s*(?:and\s+)?|\s+and\s+){_NAME})*)"
)
_SPELLED = (
    (re.compile(r"\s*\b(?:multiplied by|times)\b\s*|(?<=\d)\s*[\u00d7x]\s*(?=\d)"), " * "),
    (re.compile(r"\s*\bplus\b\s*"), " + "),
    (re.compile(r"\s*(?:\bminus\b|\u2212)\s*"), " - "),
    (re.compile(r"\s*(?:\bdivided by\b|÷)\s*"), " / "),
    (re.compile(r"%\s+of\b"), " / 100 *"),
    (re.compile(r"\bmultiply (\d[\d.]{0,40}) (?:by|with|and) (?=\d)"), r"\1 * "),
    (re.compile(r"\bdivide (\d[\d.]{0,40}) by (?=\d)"), r"\1 / "),
)

ZONES = {
    "amsterdam": "Europe/Amsterdam",
    "bangkok": "Asia/Bangkok",
    "beijing": "Asia/Shanghai",
    "berlin": "Europe/Berlin",
    "cairo": "Africa/Cairo",
    "chicago": "America/Chicago",
    "delhi": "Asia/Kolkata",
    "dubai": "Asia/Dubai",
    "istanbul": "Europe/Istanbul",
    "lagos": "Africa/Lagos",
    "lisbon": "Europe/Lisbon",
    "london": "Europe/London",
    "los angeles": "America/Los_Angeles",
    "madrid": "Europe/Madrid",
    "mexico city": "America/Mexico_City",
    "moscow": "Europe/Moscow",
    "mumbai": "Asia/Kolkata",
    "nairobi": "Africa/Nairobi",
    "new york": "America/New_York",
    "paris": "Europe/Paris",
    "rome": "Europe/Rome",
    "san francisco": "America/Los_Angeles",
    "sao paulo": "America/Sao_Paulo",
    "seoul": "Asia/Seoul",
    "singapore": "Asia/Singapore",
    "sydney": "Australia/Sydney",
    "tokyo": "Asia/Tokyo",
    "toronto": "America/Toronto",
    "vienna": "Europe/Vienna",
    "zurich": "Europe/Zurich",
}
_CITY = re.compile(rf"\b(?:{'|'.join(ZONES)})\b", re.IGNORECASE)


class Clues:
    """The candidates in a text, each list in the order of reading. A list is its reader's own, to take from."""

    def __init__(self, text: str) -> None:
        self.text = legible(text)
        found = _found(self.text)
        self.quotes = list(found.quotes)
        self.dates = list(found.dates)
        self.emails = list(found.emails)
        self.urls = list(found.urls)
        self.numbers = list(found.numbers)
        self.places = list(found.places)
        self.expression = found.expression

    @property
    def zones(self) -> list[str]:
        known = [ZONES[place.lower()] for place in self.places if place.lower() in ZONES]
        return [*_ZONE.findall(self.text), *known]


class _Found(NamedTuple):
    quotes: list[str]
    dates: list[str]
    emails: list[str]
    urls: list[str]
    numbers: list[float]
    places: list[str]
    expression: str | None


@lru_cache(maxsize=64)  # each tool and each of its arguments looks into the same few texts
def _found(text: str) -> _Found:
    return _Found(
        quotes=["".join(groups) for groups in _QUOTE.findall(text)],
        dates=_DATE.findall(text),
        emails=_EMAIL.findall(text),
        urls=_URL.findall(text),
        numbers=[float(n) if "." in n else int(n) for n in _NUMBER.findall(_undated(text))],
        places=_places(text),
        expression=_expression(text),
    )


def _places(text: str) -> list[str]:
    """Capitalised names behind a preposition, and known cities anywhere."""
    found: dict[int, str] = {}
    for listing in _PLACES.finditer(text):
        for name in re.finditer(_NAME, listing[1]):
            if name[0] not in NOT_PLACES:
                found[listing.start(1) + name.start()] = name[0]
    named = {position for start, name in found.items() for position in range(start, start + len(name))}
    for city in _CITY.finditer(text):
        if city.start() not in named:
            found[city.start()] = city[0].title()
    return list(dict.fromkeys(found[start] for start in sorted(found)))


def _expression(text: str) -> str | None:
    text = _undated(text)
    for spelled, sign in _SPELLED:
        text = spelled.sub(sign, text)
    found = _SUM.search(text)
    return found[0].strip().rstrip(".,") if found else None


def _undated(text: str) -> str:
    """The text without its dates, whose digits are no numbers, and with 2,340 as 2340."""
    return _THOUSANDS.sub("", _DATE.sub(" ", text))
