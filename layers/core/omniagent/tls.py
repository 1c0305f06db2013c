"""One TLS context for every HTTP client of the process: reading the certificates takes 28 ms a time."""

import ssl
from functools import cache


@cache
def tls_context() -> ssl.SSLContext:
    import httpx2  # loaded by whoever asks

    return httpx2.create_ssl_context()
