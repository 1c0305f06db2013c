"""The environment, read once into one frozen object.

Each field documents itself with `setting(default, "what it does")`. docs/settings.md is generated from it.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_args

from omniagent.errors import ConfigurationError

AuthMode = Literal["iam", "jwt", "none"]
OpenAIApi = Literal["responses", "chat"]
Busy = Literal["reject", "queue", "steer", "interrupt"]
"""What happens to a message while the session answers another one."""
TokenUse = Literal["access", "id"]

MAX_DAYS = 36_500
"""A century: later dates overflow."""
_FITTING: dict[Any, Any] = {str: str, bool: (str, bool)}
_BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
FORBIDDEN_IN_DATABASE = frozenset('/\\. "$*<>:|?')


def setting(
    default: Any,
    doc: str,
    *,
    env: str = "",
    secret: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    metadata = {"doc": doc, "env": env, "minimum": minimum, "maximum": maximum}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Spending limits of one user. 0 means no limit."""

    requests_per_minute: int = 0
    tokens_per_day: int = 0

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_day"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigurationError(f"Budget({name}=…) must be an integer of 0 or more, not {value!r:.100}")

    @property
    def is_limited(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_day)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The runtime's settings. `Settings.from_env()` reads them; tests and scripts pass the ones they need."""

    model: str = setting(
        "gpt-6-luna",
        "Model for agents that do not name one. A comma-separated list forms a fallback chain.",
        env="OMNIAGENT_MODEL",
    )
    openai_api: OpenAIApi = setting("responses", "OpenAI API to call: `responses` or `chat`.")
    openai_api_key: str = setting("", "Model API key, for local use. On Lambda, use `OPENAI_SECRET_ARN`.", secret=True)
    openai_secret_arn: str = setting(
        "", "Secrets Manager ARN of the model API key, or of JSON with `OPENAI_API_KEY` and `ANTHROPIC_API_KEY`."
    )
    openai_base_url: str = setting("", "Base URL of an OpenAI-compatible server. Empty: OpenAI.")
    anthropic_api_key: str = setting(
        "", "Key of Anthropic's API, for local use. On Lambda, it is in `OPENAI_SECRET_ARN`.", secret=True
    )
    anthropic_base_url: str = setting("", "Base URL of a server with Anthropic's Messages API. Empty: Anthropic.")
    model_timeout_seconds: float = setting(
        60.0,
        "Maximum silence of a model call: before its first byte (retries included) and between two chunks.",
        minimum=0.1,
    )
    name_sessions: bool = setting(
        False, "Name a session after its first complete answer. Otherwise clients call `POST /sessions/{id}/name`."
    )

    mongodb_uri: str = setting(
        "", "MongoDB connection string, for local use. On Lambda, use `MONGODB_SECRET_ARN`.", secret=True
    )
    mongodb_secret_arn: str = setting("", "Secrets Manager ARN of the MongoDB connection string.")
    mongodb_database: str = setting("omniagent", "Name of the MongoDB database.")
    mongodb_timeout_seconds: float = setting(8.0, "Timeout of one MongoDB operation.", minimum=0.1)
    mongodb_pool_size: int = setting(
        0,
        "Maximum MongoDB connections of a process, without the driver's own. `maxPoolSize` in the connection string "
        "wins. 0: 2 on Lambda, 8 on Managed Instances, 100 elsewhere.",
        minimum=0,
    )

    max_steps: int = setting(8, "Maximum number of model calls in one turn.", minimum=1)
    max_tool_calls_per_turn: int = setting(64, "Maximum number of tool calls that run in one turn.", minimum=1)
    request_expiry_days: float = setting(
        60.0,
        "How long a turn waits for an approval or a client tool. It is then closed as denied.",
        minimum=0.0,
        maximum=MAX_DAYS,
    )

    context_max_turns: int = setting(
        30,
        "Maximum number of recent turns in the prompt. When there are as many, a summary replaces the older half.",
        minimum=1,
    )
    context_max_tokens: int = setting(
        32_000,
        "Maximum tokens of recent turns, the message and its answer in the prompt. At seven eighths, a summary "
        "replaces the older half.",
        minimum=100,
    )

    turns_table: str = setting("", "DynamoDB table of running turns. Empty: in memory, for a single process.")
    summary_queue_url: str = setting("", "URL of the SQS queue for summary regeneration.")
    run_queue_url: str = setting(
        "",
        "URL of the run function's SQS queue. Empty: no background turns, and no turn is handed over or swept.",
    )
    webhook_url: str = setting(
        "", "URL of your server that receives an event when a turn ends. Needs the run queue. Empty: no webhooks."
    )
    webhook_secret: str = setting(
        "", "Signing secret of webhooks, or the ARN of the Secrets Manager secret that holds it.", secret=True
    )
    max_turn_seconds: float = setting(
        3600.0,
        "Maximum length of a turn where there is a run queue. Such a turn continues in the next invocation.",
        minimum=1.0,
    )
    tick_seconds: float = setting(
        0.5,
        "Interval at which a turn appends to its journal and checks for a stop and for messages that steer it.",
        minimum=0.001,
    )
    lease_seconds: float = setting(
        10.0,
        "How long a running turn may show no sign of life. After that, another process takes it over.",
        minimum=0.1,
    )

    auth_mode: AuthMode = setting("iam", "Authentication of callers: `iam`, `jwt`, or `none` (local only).")
    trusted_principals: str = setting(
        "",
        "Comma-separated ARNs of the roles and users that may name their end user in `x-user-id`, in `iam` mode. "
        "Empty: none.",
    )
    jwt_issuer: str = setting("", "Required `iss` of JWTs.")
    jwt_audience: str = setting(
        "", "Required `aud` of JWTs. Empty: tokens without `aud`, checked by `JWT_CLIENT_IDS` alone."
    )
    jwt_client_ids: str = setting(
        "", "Comma-separated clients whose tokens are accepted, by `azp` or `client_id`. Empty: any client."
    )
    jwt_token_use: TokenUse = setting("access", "Accepted kind of token: `access` or `id`.")
    jwt_jwks_url: str = setting("", "URL of the issuer's JWKS. Empty: the issuer's /.well-known/jwks.json.")
    cors_origins: str = setting(
        "", "Comma-separated web origins that may call through API Gateway. A Function URL has its own CORS settings."
    )

    max_message_chars: int = setting(32_000, "Maximum length of a user message.", minimum=1)
    max_running_turns_per_user: int = setting(5, "Maximum number of turns a user may have running at once.", minimum=1)
    busy: Busy = setting(
        "reject",
        "Default policy for a message that arrives while its session is answering another: `reject` (409), `queue` "
        "(answer it afterwards), `steer` (add it to the running answer) or `interrupt` (stop that answer first).",
    )
    max_queued_messages: int = setting(10, "Maximum number of queued messages in one session.", minimum=1)
    max_readers_per_user: int = setting(
        20, "Maximum number of requests that may follow a user's running turns at once.", minimum=1
    )
    budget_requests_per_minute: int = setting(
        0, "Maximum turns, names, summaries, searches and new sessions per user and minute. 0: no limit.", minimum=0
    )
    budget_tokens_per_day: int = setting(
        0, "Maximum input and output tokens per user and day (UTC). 0: no limit.", minimum=0
    )

    session_retention_days: int = setting(
        0, "Days after its last message when a session is deleted. 0: never.", minimum=0, maximum=MAX_DAYS
    )
    journal_days: int = setting(
        7,
        "Days after which the journal of a turn expires. Its answer is kept with the session.",
        minimum=1,
        maximum=365,
    )

    docs_enabled: bool = setting(True, "Serve /docs and /openapi.json.")
    log_level: str = setting("INFO", "`DEBUG`, `INFO`, `WARNING` or `ERROR`.")
    otel_exporter_otlp_endpoint: str = setting("", "OTLP/HTTP endpoint of a trace collector. Empty: no tracing.")
    otel_exporter_otlp_headers: str = setting(
        "", "Headers for the collector, such as an API key: `name=value,name=value`, URL-encoded.", secret=True
    )
    trace_content: bool = setting(False, "Record messages, tool inputs and tool outputs in traces.")

    @cached_property
    def budget(self) -> Budget:
        """The default budget, for users whose category has none."""
        return Budget(requests_per_minute=self.budget_requests_per_minute, tokens_per_day=self.budget_tokens_per_day)

    def __post_init__(self) -> None:
        """Check every value that is not a default, whether the environment or code has set it."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not each.default:
                object.__setattr__(self, each.name, _parsed(each, value, each.name))
        _check_together(self)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, defaults: Mapping[str, Any] | None = None) -> "Settings":
        """Read the environment. `defaults` apply to empty variables. An error names the variable."""
        source = os.environ if env is None else env
        texts = {each: source.get(env_name(each), "").strip() for each in fields(cls)}
        found = {each.name: _parsed(each, text, env_name(each)) for each, text in texts.items() if text}
        return cls(**{**checked_defaults(defaults or {}), **found})


def _check_together(settings: Settings) -> None:
    """Refuse values that are valid one by one and cannot work together, or at all."""
    if settings.tick_seconds > settings.lease_seconds / 2:
        # Signs of life are written once a tick: with one missed, a running turn would look dead.
        raise ConfigurationError(
            f"TICK_SECONDS ({settings.tick_seconds:g}) must be at most half of LEASE_SECONDS "
            f"({settings.lease_seconds:g})"
        )
    if not all(name.strip() for name in settings.model.split(",")):
        raise ConfigurationError(f"OMNIAGENT_MODEL names an empty model: {settings.model!r}")
    if not settings.mongodb_database or FORBIDDEN_IN_DATABASE & set(settings.mongodb_database):
        raise ConfigurationError(f"MONGODB_DATABASE is not a name MongoDB accepts: {settings.mongodb_database!r}")


def checked_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, each converted to its field's type. Raises `ConfigurationError` for any that does not fit."""
    known = {setting_field.name: setting_field for setting_field in fields(Settings)}
    if unknown := sorted(values.keys() - known.keys()):
        raise ConfigurationError(f"unknown setting {unknown[0]!r}; known settings: {', '.join(known)}")
    return {name: _parsed(known[name], value, name) for name, value in values.items()}


def env_name(setting_field: "Field[Any]") -> str:
    """Return the environment variable of a field."""
    return setting_field.metadata["env"] or setting_field.name.upper()


def _parsed(setting_field: "Field[Any]", value: Any, name: str) -> Any:
    """Return a value as its field's type. Text is read as in the environment. `name` is what errors call it."""
    kind: Any = setting_field.type
    if choices := get_args(kind):
        if value not in choices:
            raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value
    fitting: Any = _FITTING.get(kind, (str, int, float))
    if not isinstance(value, fitting) or (isinstance(value, bool) and kind is not bool):
        raise ConfigurationError(f"{name} must be of type {kind.__name__}, not {value!r}")
    text = str(value).strip()
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigurationError(f"{name} must be true or false, not {text!r}")
        return _BOOLEANS[text.lower()]
    try:
        number = kind(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a number, not {text!r}") from None
    least, most = setting_field.metadata["minimum"], setting_field.metadata["maximum"]
    if not math.isfinite(number):
        raise ConfigurationError(f"{name} must be a finite number, not {text!r}")
    if least is not None and number < least:
        raise ConfigurationError(f"{name} must be at least {least:g}, not {text!r}")
    if most is not None and number > most:
        raise ConfigurationError(f"{name} must be at most {most:g}, not {text!r}")
    return number
