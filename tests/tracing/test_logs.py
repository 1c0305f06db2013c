"""What is logged, in both formats."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from awslambdaric.bootstrap import LambdaLoggerHandler, StandardLogSink  # type: ignore[import-untyped]
from opentelemetry.sdk.trace import TracerProvider

from omniagent.tracing import OmniAgentInstrumentor, bind_context, bind_request, current_trace_id, trace_operation
from omniagent.tracing.logs import THIRD_PARTY, setup_logging

logger = logging.getLogger("omniagent.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _untouched_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_LAMBDA_FUNCTION_NAME", "LOG_LEVEL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("", "omniagent", *THIRD_PARTY)}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def on_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")


@pytest.fixture(params=["lambda", "terminal"])
def out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Everything that is logged, from DEBUG on, once per format."""
    if request.param == "lambda":
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")
    stream = io.StringIO()
    setup_logging("DEBUG", stream=stream)
    return stream


@pytest.mark.usefixtures("on_lambda")
def test_on_lambda_a_line_is_one_json_object_with_its_fields() -> None:
    out = io.StringIO()
    setup_logging(service="chat", stream=out)
    with bind_context(request_id="r-1"):
        logger.info("The turn is %s", "complete", extra={"steps": 2, "tools": ["weather"]})
    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("+00:00")
    assert line.pop("location").startswith("test_on_lambda")
    assert line == {
        "level": "INFO",
        "name": "omniagent.test",
        "service": "chat",
        "message": "The turn is complete",
        "steps": 2,
        "tools": ["weather"],
        "request_id": "r-1",
    }


def test_in_a_terminal_a_line_is_readable_and_shows_its_fields() -> None:
    out = io.StringIO()
    setup_logging(stream=out)
    with bind_context(request_id="r-1"):
        logger.info("The turn is %s", "complete", extra={"steps": 2, "name_of_chat": "Bern in May"})
    _, _, rest = out.getvalue().partition("  ")
    assert rest == (
        'INFO     omniagent.test  The turn is complete  steps=2 name_of_chat="Bern in May" request_id=r-1\n'
    )


async def test_every_line_carries_the_user_the_session_and_the_turn_it_is_about(out: io.StringIO) -> None:
    async def turn() -> None:
        with bind_context(session_id="s-1", turn=3):
            logger.info("turn complete")

    with bind_context(request_id="r-1"):
        logger.info("request received")
        bind_request(user_id="u-1")
        await asyncio.create_task(turn())
        logger.info("request served")
    logger.info("idle")
    received, completed, served, idle = out.getvalue().splitlines()
    assert "u-1" not in received
    assert all(field in completed for field in ("r-1", "u-1", "s-1", "turn", "3"))
    assert all(field in served for field in ("r-1", "u-1"))
    assert "s-1" not in served
    assert not any(field in idle for field in ("r-1", "u-1", "s-1"))


def test_a_terminal_gets_colours_and_anything_else_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file, plain_terminal = Terminal(), io.StringIO(), Terminal()
    for stream in (terminal, file):
        setup_logging(stream=stream)
        logger.info("Hello")
    monkeypatch.setenv("NO_COLOR", "1")
    setup_logging(stream=plain_terminal)
    logger.info("Hello")
    assert "\x1b[32mINFO" in terminal.getvalue()
    assert "\x1b[" not in file.getvalue() + plain_terminal.getvalue()


def test_the_trace_id_is_on_every_line_inside_a_span(out: io.StringIO) -> None:
    OmniAgentInstrumentor().instrument(TracerProvider(shutdown_on_exit=False))
    try:
        with trace_operation("work"):
            logger.info("inside")
            trace_id = current_trace_id()
        logger.info("outside")
    finally:
        OmniAgentInstrumentor().uninstrument()
    inside, outside = out.getvalue().splitlines()
    assert trace_id is not None
    assert trace_id in inside
    assert trace_id not in outside


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-Abc123_456-789xyz",
        "mongodb+srv://me:hunter22@cluster.example.net/db",
        "Authorization: Bearer hunter22.hunter22",
        "{'password': 'hunter22'}",
        "api_key=hunter22",
        "eyJhunter22.eyJhunter22.hunter22",
        "aws_secret_access_key=hunter22",
        "refresh_token: hunter22",
        "?token=hunter22",
        "pwd=hunter22",
        "sk_live_hunter22hunter22",
        "ghp_hunter22hunter22",
        "github_pat_hunter22hunter22",
        "AIzahunter22hunter22",
        "AKIAABC123ABC123ABC1",
        "Cookie: a=1; session=hunter22",
    ],
)
def test_a_text_that_looks_like_a_secret_is_masked_wherever_it_stands(out: io.StringIO, secret: str) -> None:
    logger.info("message %s", secret, extra={"detail": secret, "nested": {"list": [secret]}})
    logger.error("failed", exc_info=RuntimeError(secret))
    assert not re.search("hunter22|Abc123", out.getvalue())
    assert out.getvalue().count("***") >= 4


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "accessToken", "client_secret", "db_password", "mongodb_uri", "Cookie"]
)
def test_a_field_with_a_telling_name_is_masked(out: io.StringIO, name: str) -> None:
    logger.info("hello", extra={name: "open sesame", "nested": {name: 12345678}})
    assert not re.search("sesame|12345678", out.getvalue())


def test_the_arn_of_a_secret_and_token_counts_are_no_secret(out: io.StringIO) -> None:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:mongodb-AbCdEf"
    logger.error(
        "Secret %s: AccessDeniedException", arn, extra={"secret_arn": arn, "total_tokens": 1, "token_count": 2}
    )
    assert out.getvalue().count(arn) == 2
    assert "***" not in out.getvalue()


@pytest.mark.parametrize("out", ["lambda"], indirect=True)  # both forms are masked by the same function
def test_masking_a_long_hostile_text_is_bounded(out: io.StringIO) -> None:
    logger.info("%s", "eyJ-" * 100_000 + "://" * 100_000 + "password=" * 50_000)
    assert out.getvalue()


@pytest.mark.parametrize("library", ["openai", "httpx2", "httpcore2.http11", "pymongo.command", "botocore.endpoint"])
def test_libraries_never_log_bodies_even_if_they_lower_their_own_level(out: io.StringIO, library: str) -> None:
    assert not logging.getLogger(library).isEnabledFor(logging.INFO)
    logging.getLogger(library.partition(".")[0]).setLevel(logging.DEBUG)
    logging.getLogger(library).debug("body: what the user wrote")
    logging.getLogger(library).warning("connection lost")
    assert "what the user wrote" not in out.getvalue()
    assert "connection lost" in out.getvalue()


def test_setting_up_again_prints_no_line_twice(out: io.StringIO) -> None:
    setup_logging(stream=out)
    setup_logging(stream=out)
    logger.info("once")
    assert out.getvalue().count("once") == 1


@pytest.mark.usefixtures("on_lambda")
def test_the_handler_of_the_lambda_runtime_prints_no_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().addHandler(LambdaLoggerHandler(StandardLogSink()))
    setup_logging()
    logger.info("once")
    logging.getLogger("agent").info("twice")
    lines = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["once", "twice"]


def test_the_level_comes_from_the_environment_and_a_wrong_one_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_LEVEL", "error")
    assert setup_logging(stream=io.StringIO()).level == logging.ERROR
    monkeypatch.setenv("LOG_LEVEL", "LOUD")
    out = io.StringIO()
    assert setup_logging(stream=out).level == logging.INFO
    assert "log_level=LOUD" in out.getvalue()
