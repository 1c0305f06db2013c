"""An identity provider for tests: signs tokens and publishes its keys over HTTP."""

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.fixtures.http_server import HttpServer, Received

AUDIENCE = "omniagent-tests"
Json = dict[str, Any]


class Issuer(HttpServer):
    """Serves its keys while the context is open. `fetches` counts how often they were asked for."""

    def __init__(self) -> None:
        super().__init__()
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

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.fetches += 1
        body = json.dumps({"keys": self.keys}).encode()
        return self.status if request.path == "/.well-known/jwks.json" else 404, body
