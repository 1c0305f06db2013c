"""`python -m local.moto_server PORT`: moto, for whoever knows its access key.

moto itself answers every request that reaches it, and its own API lists and erases what it holds. The key comes from
AWS_ACCESS_KEY_ID: a command line is visible to everybody on the machine.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

from local.callers import PROGRAMS, REFUSAL
from local.ports import LOOPBACK

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Environ = dict[str, Any]


def guarded(app: "WSGIApplication", access_key: str) -> "WSGIApplication":
    """Return the application for programs of this machine that sign with the key, in a header or in the query."""
    signed, presigned = f"Credential={access_key}/", f"X-Amz-Credential={quote(access_key, safe='')}%2F"

    def serve(environ: Environ, start_response: "StartResponse") -> Iterable[bytes]:
        header = _headers_of(environ)
        has_key = signed in header("authorization") or presigned in environ.get("QUERY_STRING", "")
        if has_key and PROGRAMS.include(header):
            return app(environ, start_response)
        start_response("403 Forbidden", [("content-type", "text/plain; charset=utf-8")])
        return [f"{REFUSAL}\n".encode()]

    return serve


def atomic_tables(app: "WSGIApplication") -> "WSGIApplication":
    """Return the application with one request to DynamoDB at a time. Other services may wait in theirs.

    DynamoDB changes an item atomically. moto reads, checks and writes in threads without a lock: of two conditional
    updates at the same moment both would succeed.
    """
    lock = threading.Lock()

    def serve(environ: Environ, start_response: "StartResponse") -> Iterable[bytes]:
        if not _headers_of(environ)("x-amz-target").startswith("DynamoDB_"):
            return app(environ, start_response)
        with lock:
            return list(app(environ, start_response))

    return serve


def _headers_of(environ: Environ) -> Callable[[str], str]:
    return lambda name: str(environ.get(f"HTTP_{name.upper().replace('-', '_')}", ""))


def main() -> None:
    """Serve until ended."""
    app = DomainDispatcherApplication(create_backend_app)
    run_simple(
        LOOPBACK,
        int(sys.argv[1]),
        guarded(atomic_tables(app), os.environ["AWS_ACCESS_KEY_ID"]),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main()
