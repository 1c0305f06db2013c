"""A folder of static files over HTTP."""

from pathlib import Path
from urllib.parse import unquote

from local.emulator.http import NO_STORE, Exchange, Headers

# Not the system's own table, which differs between machines.
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
PLAIN = ("content-type", "text/plain; charset=utf-8")


class Files:
    """Serves the files below a folder, and nothing else."""

    def __init__(self, folder: Path, headers: Headers) -> None:
        """Serve `folder`; every response carries `headers`."""
        self._folder = folder.resolve()
        # No caching, so that a reload shows the current file.
        self._headers = [*headers, NO_STORE, ("x-content-type-options", "nosniff")]

    async def answer(self, exchange: Exchange) -> None:
        """Send the requested file."""
        if exchange.method not in {"GET", "HEAD"}:
            await exchange.respond(405, [*self._headers, PLAIN, ("allow", "GET, HEAD")], b"Only GET.\n")
            return
        file = self._find(unquote(exchange.path))
        if file is None:
            await exchange.respond(404, [*self._headers, PLAIN], b"Not found.\n")
            return
        content_type = CONTENT_TYPES.get(file.suffix, "application/octet-stream")
        await exchange.respond(200, [*self._headers, ("content-type", content_type)], file.read_bytes())

    def _find(self, path: str) -> Path | None:
        """Return the file at a path, or None if there is none or the path leads out of the folder."""
        if "\0" in path:
            return None
        file = (self._folder / path.lstrip("/")).resolve()
        if file.is_dir():
            file /= "index.html"
        return file if file.is_relative_to(self._folder) and file.is_file() else None
