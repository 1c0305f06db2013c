"""Who gets in by a signature, and who on a laptop. `test_tokens` is about the third mode."""

from typing import Any

import pytest

from omniagent.errors import ConfigurationError, Forbidden, InvalidRequest, Unauthenticated
from omniagent.http.auth import Caller, authenticator, trusted_principals
from omniagent.settings import Settings
from omniagent.tls import is_loopback, is_loopback_origin

Json = dict[str, Any]
ARN = "arn:aws:sts::123456789012:assumed-role/web-backend/web-backend"
ROLE = "arn:aws:iam::123456789012:role/web-backend"
COGNITO = "arn:aws:sts::123456789012:assumed-role/Pool/CognitoIdentityCredentials"
PUBLIC = "abc.lambda-url.us-east-1.on.aws"


def scope(
    headers: dict[str, str] | None = None, *, context: Json | None = None, client: str = "203.0.113.7"
) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    found: dict[str, Any] = {"type": "http", "headers": raw, "client": (client, 0)}
    return found if context is None else {**found, "aws.event": {"requestContext": context}}


def signed(headers: dict[str, str] | None = None, signer: str = ARN) -> dict[str, Any]:
    return scope(headers, context={"authorizer": {"iam": {"userArn": signer}}})


async def found(scope: dict[str, Any], listed: str = ROLE) -> Caller:
    """The caller of a request in the mode `iam`, where these principals are listed."""
    return await authenticator(Settings(auth_mode="iam", trusted_principals=listed))(scope)


async def here(scope: dict[str, Any]) -> Caller:
    """The caller of a request in the mode `none`."""
    return await authenticator(Settings(auth_mode="none"), local=True)(scope)


class TestIam:
    async def test_the_signer_is_the_user_when_it_names_none(self) -> None:
        for listed in (ROLE, ""):
            assert await found(signed(), listed) == Caller(f"iam:{ARN}")

    async def test_a_trusted_signer_names_its_user_and_their_category(self) -> None:
        caller = await found(signed({"x-user-id": "ada", "x-user-category": "pro"}))
        assert (caller, caller.claims) == (Caller("user:ada", "pro"), {"userArn": ARN})

    async def test_a_named_user_is_never_a_principal(self) -> None:
        for name in (ARN, f"iam:{ARN}", "jwt:ada"):
            caller = await found(signed({"x-user-id": name}))
            assert caller.client_id == f"user:{name}"

    @pytest.mark.parametrize("context", [None, {}, {"authorizer": None}, {"authorizer": {"iam": None}}])
    async def test_without_a_signature_nobody_gets_in(self, context: Json | None) -> None:
        with pytest.raises(Unauthenticated) as refused:
            await found(scope({"x-user-id": "ada"}, context=context))
        assert refused.value.challenge == "AWS4-HMAC-SHA256"

    @pytest.mark.parametrize("name", ["", " ", " ada", "ada ", "a" * 257, "ada,eve", "a\x00b", "a\nb", "\u202eada"])
    async def test_a_name_that_is_not_plain_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidRequest, match="x-user-id"):
            await found(signed({"x-user-id": name}))

    async def test_two_names_are_refused(self) -> None:
        twice = signed({"x-user-id": "ada"})
        twice["headers"].append((b"x-user-id", b"eve"))
        with pytest.raises(InvalidRequest):
            await found(twice)


TRUSTING = [
    (ROLE, ARN),
    ("arn:aws:iam::123456789012:role/team/blue/web-backend", ARN),
    ("arn:aws:sts::123456789012:assumed-role/web-backend/*", ARN),
    (ARN, ARN),
    (f" arn:aws:iam::123456789012:user/ci , {ROLE} ,", ARN),
    ("arn:aws:iam::123456789012:user/team/ci", "arn:aws:iam::123456789012:user/team/ci"),
    ("arn:aws-us-gov:iam::123456789012:role/web", "arn:aws-us-gov:sts::123456789012:assumed-role/web/i-0abc"),
    ("arn:aws:sts::123456789012:federated-user/bob", "arn:aws:sts::123456789012:federated-user/bob"),
    (COGNITO, COGNITO),
]


@pytest.mark.parametrize(("listed", "signer"), TRUSTING)
async def test_a_listed_principal_speaks_for_others(listed: str, signer: str) -> None:
    assert await found(signed({"x-user-id": "ada"}, signer), listed) == Caller("user:ada")


# Near misses: what a prefix, a suffix or a pattern would let through.
NOT_LISTED = [
    ("", ARN),
    (ROLE, "arn:aws:sts::123456789012:assumed-role/web-backend-2/web-backend"),
    (ROLE, "arn:aws:sts::123456789012:assumed-role/my-web-backend/web-backend"),
    (ROLE, "arn:aws:sts::123456789012:assumed-role/WEB-BACKEND/web-backend"),
    (ROLE, "arn:aws:sts::210987654321:assumed-role/web-backend/web-backend"),
    (ROLE, "arn:aws-cn:sts::123456789012:assumed-role/web-backend/web-backend"),
    (ROLE, "arn:aws:iam::123456789012:user/web-backend"),
    (ROLE, "arn:aws:sts::123456789012:federated-user/web-backend"),
    (ROLE, "arn:aws:sts::123456789012:assumed-role/other/web-backend"),
    (ROLE, "arn:aws:sts::123456789012:assumed-role/other/web-backend/web-backend"),
    (ROLE, f"{ARN}/more"),
    (ROLE, f"{ARN}\n"),
    (ARN, f"{ARN}-2"),
    (ARN, "arn:aws:sts::123456789012:assumed-role/web-backend/another"),
    ("arn:aws:iam::123456789012:user/ci", "arn:aws:iam::123456789012:user/team/ci"),
    ("arn:aws:iam::123456789012:role/Pool", COGNITO),
    ("arn:aws:sts::123456789012:assumed-role/Pool/*", COGNITO),
]


@pytest.mark.parametrize(("listed", "signer"), NOT_LISTED)
@pytest.mark.parametrize("header", ["x-user-id", "X-User-Category"])
async def test_nobody_else_does(listed: str, signer: str, header: str) -> None:
    for name in ("ada", ""):
        with pytest.raises(Forbidden, match=header.lower()) as refused:
            await found(signed({header: name}, signer), listed)
        assert refused.value.reason == "principal not trusted"


@pytest.mark.parametrize("listed", ["", ROLE, COGNITO])
async def test_those_who_share_an_arn_are_nobody_in_particular(listed: str) -> None:
    with pytest.raises(Forbidden, match="Cognito"):
        await found(signed(signer=COGNITO), listed)


@pytest.mark.parametrize(
    "entry",
    [
        *("*", "web-backend", "123456789012", "arn:aws:iam::123456789012:root"),
        *("arn:aws:iam::123456789012:role/*", "arn:aws:iam::123456789012:role/web-*"),
        *("arn:aws:iam::*:role/web-backend", "arn:aws:iam::12345678901:role/web-backend"),
        *("arn:aws:iam::123456789012:role/", "arn:aws:iam::123456789012:role/web backend"),
        *("arn:aws:iam::123456789012:role/a,b", "arn:aws:iam::\u0661\u0662\u0663456789012:role/web"),
        *("arn:aws:iam::123456789012:user/*", "arn:aws:iam::123456789012:group/web"),
        "arn:aws:sts::123456789012:assumed-role/*/web-backend",
        "arn:aws:sts::123456789012:assumed-role/web-backend",
        "arn:aws:sts::123456789012:assumed-role/web-backend/web-*",
    ],
)
def test_a_principal_that_is_none_is_a_wrong_setting(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="TRUSTED_PRINCIPALS"):
        trusted_principals(f"{ROLE},{entry}")


class TestNone:
    @pytest.mark.parametrize(
        "headers",
        [
            *({"host": host} for host in ("127.0.0.1:3000", "localhost", "chat.localhost:3000", "[::1]:3000")),
            *({"host": "localhost", "origin": page} for page in ("http://localhost:3000", "https://app.localhost")),
        ],
    )
    async def test_this_machine_and_its_pages_get_in(self, headers: dict[str, str]) -> None:
        sent = scope(headers, client="127.0.0.1", context={"domainName": headers["host"]})
        assert await here(sent) == Caller("local:me")

    async def test_a_name_can_be_chosen(self) -> None:
        assert await here(scope({"host": "localhost", "x-user-id": "ada"}, client="::1")) == Caller("local:ada")

    @pytest.mark.parametrize(
        ("headers", "domain", "client"),
        [
            ({"host": PUBLIC}, PUBLIC, "203.0.113.7"),
            ({"host": "localhost"}, PUBLIC, "127.0.0.1"),
            ({"host": "localhost"}, "localhost", "203.0.113.7"),
            ({"host": "evil.example"}, "localhost", "127.0.0.1"),
            ({}, "localhost", "127.0.0.1"),
            # A body without a content type is a simple request: a browser would send it without asking first.
            ({"host": "localhost", "origin": "https://evil.example"}, "localhost", "127.0.0.1"),
            ({"host": "localhost", "origin": "null"}, "localhost", "127.0.0.1"),
        ],
    )
    async def test_no_other_machine_and_no_other_page_does(
        self, headers: dict[str, str], domain: str, client: str
    ) -> None:
        with pytest.raises(Unauthenticated):
            await here(scope(headers, client=client, context={"domainName": domain}))

    async def test_a_wrong_mode_is_an_error_of_the_request_and_not_of_the_import(self) -> None:
        find = authenticator(Settings(auth_mode="none"))
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="OMNIAGENT_LOCAL"):
                await find(scope({"host": "localhost"}, client="127.0.0.1"))


HERE = ["127.0.0.1", "127.9.9.9:80", "::1", "[::1]", "LOCALHOST:3000", "a.localhost", "[::1]:443"]
ELSEWHERE = [
    *("", "10.0.0.1", "0", "127.1", "0x7f.0.0.1", "2130706433", "0.0.0.0", "127.0.0.1.", "127.0.0.1.nip.io"),
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "evil@localhost"),
    *("evil.example#.localhost", "evil.example/.localhost", "notlocalhost", "localho\u017ft", ".localhost"),
    *("localhost:evil", "localhost:80:80", "localhost:", "localhost\n", "[", "[::1", "[::1]evil.example"),
    *("::ffff:8.8.8.8", "::ffff:127.0.0.1", "[::ffff:127.0.0.1]", "::1%lo", "[fe80::1]"),
]


@pytest.mark.parametrize("host", [*HERE, *ELSEWHERE])
def test_loopback_is_only_this_machine(host: str) -> None:
    assert is_loopback(host) is (host in HERE)


PAGES_HERE = ["http://localhost", "https://127.0.0.1:8443", "http://[::1]:80", "http://a.localhost"]
PAGES_ELSEWHERE = [
    *("", "null", "localhost", "//localhost", "file://", "file://localhost", "chrome-extension://localhost"),
    *("http://localhost/", "http://localhost?", "http://localhost#", "http://user@localhost", "http://localhost:x"),
    *("https://evil.example", "http://localhost@evil.example", "http://evil.example#@localhost"),
    *("http://localhost.evil.example", "http://127.0.0.1.nip.io", "http://localhost, http://evil.example"),
    *("http://localhost\n", " http://localhost", "http://evil.example\\@localhost", "HTTP://localhost:123456"),
]


@pytest.mark.parametrize("origin", [*PAGES_HERE, *PAGES_ELSEWHERE])
def test_a_loopback_origin_is_a_page_of_this_machine(origin: str) -> None:
    assert is_loopback_origin(origin) is (origin in PAGES_HERE)
