"""A real Chromium, one per test run, with a fresh profile and a user of its own for each test."""

import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from local.background import BackgroundStack
from local.front import PLAYGROUND
from tests.browser.page_bundle import bundled_page
from tests.browser.playground import OpenPage, Playground
from tests.browser.witness import Witness
from tests.fixtures.proxy import Proxy, proxy_to

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
INSTALL = Path(__file__).with_name("install_chromium.sh")
INSTALL_SECONDS = 300
# On a busy machine a function may take long to start.
PATIENCE_MS = 60_000
DESKTOP = {"width": 1280, "height": 800}
# An animation is painted by the CPU here.
CONTEXT = {"viewport": DESKTOP, "reduced_motion": "reduce"}
NewPage = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium. Where none can be had, the tests are skipped."""
    found = subprocess.run([str(INSTALL)], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if found.returncode:
        pytest.skip(f"no browser: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout.strip()


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playground's page in few files, where they can be bundled. `test_waiting` opens the page as it is."""
    if not shutil.which("npm"):
        return PLAYGROUND
    return bundled_page(tmp_path_factory.mktemp("playground") / "page")


@pytest.fixture(scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
async def wire(stack: BackgroundStack) -> AsyncIterator[Proxy]:
    """The stack behind a cable that can be cut, at an origin of its own."""
    async with proxy_to(stack.url) as wire:
        yield wire


@pytest.fixture
def witness() -> Iterator[Witness]:
    """Looks for what no test may see: an error of a script, a request that leaves this machine."""
    witness = Witness()
    yield witness
    witness.check()


@pytest.fixture
def user() -> str:
    """A user whom no other test has."""
    return f"browser-{uuid.uuid4().hex}"


@pytest.fixture
async def new_page(browser: Browser, witness: Witness, user: str) -> AsyncIterator[NewPage]:
    """Make empty pages for the test's user, each with a profile of its own and the options of a browser context."""
    contexts: list[BrowserContext] = []

    async def new_page(**options: Any) -> Page:
        context = await browser.new_context(**{**CONTEXT, "extra_http_headers": {"x-user-id": user}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        witness.watch(page)
        return page

    yield new_page
    for context in contexts:
        await context.close()


@pytest.fixture
def open_page(new_page: NewPage, stack: BackgroundStack, user: str) -> OpenPage:
    """Open the playground."""

    async def open_page(path: str = "/", *, url: str = stack.url, **options: Any) -> Playground:
        playground = Playground(await new_page(**options), url, stack.url, user)
        await playground.open(path)
        return playground

    return open_page


@pytest.fixture
async def playground(open_page: OpenPage) -> Playground:
    """The playground as a newcomer sees it."""
    return await open_page()


@pytest.fixture
def page(playground: Playground) -> Page:
    return playground.page
