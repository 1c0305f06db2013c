"""An identity provider for tests: signs tokens and publishes its keys over HTTP."""

import http.server
import json
import threading
import time
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "omniagent-tests"
Json = dict[str, Any]


class Issuer:
    """Serves its keys while the context is open. `fetches` counts how often they were asked for."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.ed = ed25519.Ed25519PrivateKey.generate()
        self.fetches = 0
        self.status = 200
        self.keys = [
            {**RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True), "kid": "rsa", "use": "sig"},
            {**ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True), "kid": "ec", "use": "sig"},
            {**OKPAlgorithm.to_jwk(self.ed.public_key(), as_dict=True), "kid": "ed", "use": "sig"},
        ]
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def public_pem(self) -> bytes:
        return self.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def claims(self, **changes: Any) -> Json:
        """Claims that are accepted, but for the changes; None leaves one out."""
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 600}
        return {name: value for name, value in {**good, **changes}.items() if value is not None}

    def token(self, *, key: Any = None, algorithm: str = "RS256", kid: str | None = "rsa", **changes: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**changes), key or self.rsa, algorithm=algorithm, headers=headers)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(issuer) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                body = json.dumps({"keys": issuer.keys}).encode()
                self.send_response(issuer.status if self.path == "/.well-known/jwks.json" else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Stay quiet."""

        return Handler
