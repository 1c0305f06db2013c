"""`python -m local.moto_server PORT`: moto, only for callers with its access key.

moto itself answers every request, and its own API lists and deletes all its data. The key is read from
AWS_ACCESS_KEY_ID, because every user of the machine can see command lines.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moto.dynamodb.models.table import Table
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

from local.callers import PROGRAMS, REFUSAL
from local.ports import LOOPBACK

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Environ = dict[str, Any]


def guarded(app: "WSGIApplication", access_key: str) -> "WSGIApplication":
    """Return the application, restricted to programs on this machine that sign with the key (header or query)."""
    signed, presigned = f"Credential={access_key}/", f"X-Amz-Credential={quote(access_key, safe='')}%2F"

    def serve(environ: Environ, start_response: "StartResponse") -> Iterable[bytes]:
        header = _headers_of(environ)
        has_key = signed in header("authorization") or presigned in environ.get("QUERY_STRING", "")
        if has_key and PROGRAMS.include(header):
            return app(environ, start_response)
        start_response("403 Forbidden", [("content-type", "text/plain; charset=utf-8")])
        return [f"{REFUSAL}\n".encode()]

    return serve


class QuietHandler(MotoRequestHandler):
    """Logs no requests: nobody reads the lines, and a turn makes many requests."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...


def atomic_tables(app: "WSGIApplication") -> "WSGIApplication":
    """Return the application with DynamoDB requests run one at a time. Other services' requests may block longer.

    DynamoDB changes an item atomically. moto reads, checks and writes in threads without a lock, so two simultaneous
    conditional updates would both succeed. These requests go straight to DynamoDB: for every other one, moto looks at
    the folder of each service to find the right one.
    """
    lock = threading.Lock()
    tables = create_backend_app("dynamodb")

    def serve(environ: Environ, start_response: "StartResponse") -> Iterable[bytes]:
        if not _headers_of(environ)("x-amz-target").startswith("DynamoDB_"):
            return app(environ, start_response)
        with lock:
            return list(tables(environ, start_response))

    return serve


def narrow_queries() -> None:
    """Let a query of a table read only the items that it is for. moto sorts all items of the table for each one, so a
    long run would wait for it more and more. Needs `atomic_tables`.
    """
    query_all = Table.query

    def query(self: Table, *args: Any, **options: Any) -> Any:
        hash_key, comparison, values, index_name, items = *args[:3], args[7], self.items
        if index_name is None:
            found = items.get(hash_key, {}).items()
            own = {key: item for key, item in found if not comparison or key.compare(comparison, values)}
            self.items = {hash_key: own}  # type: ignore[assignment]
        try:
            return query_all(self, *args, **options)
        finally:
            self.items = items

    Table.query = query  # type: ignore[method-assign]


def _headers_of(environ: Environ) -> Callable[[str], str]:
    return lambda name: str(environ.get(f"HTTP_{name.upper().replace('-', '_')}", ""))


def main() -> None:
    """Serve until the process is ended."""
    narrow_queries()
    app = DomainDispatcherApplication(create_backend_app)
    run_simple(
        LOOPBACK,
        int(sys.argv[1]),
        guarded(atomic_tables(app), os.environ["AWS_ACCESS_KEY_ID"]),
        threaded=True,
        request_handler=QuietHandler,
    )


if __name__ == "__main__":
    main()
