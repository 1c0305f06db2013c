"""Sees what a page does behind its user's back."""

from urllib.parse import urlsplit

from playwright.async_api import ConsoleMessage, Error, Page, Request

# The browser's own note of a request that was refused. Which are, and what the page then says, is the tests' matter.
REFUSED = "Failed to load resource"


class Witness:
    """Holds everything that pages logged, threw and asked for."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.refused: list[str] = []
        self.hosts: set[str] = set()

    def watch(self, page: Page) -> None:
        page.on("console", self._logged)
        page.on("pageerror", self._threw)
        page.on("request", self._asked)

    def check(self) -> None:
        assert not self.errors, self.errors
        assert self.hosts <= {"127.0.0.1"}, self.hosts

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            (self.refused if REFUSED in message.text else self.errors).append(message.text)

    def _threw(self, error: Error) -> None:
        self.errors.append(str(error))

    def _asked(self, request: Request) -> None:
        self.hosts.add(urlsplit(request.url).hostname or request.url)
