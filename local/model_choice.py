"""Which model answers a tab of the page: the stack's, a vendor's with the tab's key, or any compatible server.

A key stays in the tab, in the memory of this process, and of the functions' processes that answer for this tab alone:
they read it as a secret at an address of their own. It is never written or logged.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx

from local.emulator.http import Headers
from local.secrets_api import SecretsApi
from omniagent.tracing.redaction import hide

CHOICE_HEADER = "x-model-choice"
"""A tab's choice with its key, as percent-encoded JSON. Only the front reads it."""
PROCESS_HEADER = "x-model-process"
OPENAI = "https://api.openai.com/v1"
OLLAMA = "http://127.0.0.1:11434"
LOOK_SECONDS = 0.5
VENDORS = ("openai", "anthropic", "compatible")
KEPT = 4
JOBS = frozenset({"run", "summary"})
"""Functions whose events name the session's key, one each."""


class InvalidChoice(ValueError):
    """The page's choice cannot be used. The message is for the person at the page."""


@dataclass(frozen=True)
class Choice:
    """A model. `url` is the address of a compatible server, empty for a vendor's own."""

    vendor: str
    model: str = ""
    key: str = field(default="", repr=False)
    url: str = ""

    @classmethod
    def read(cls, document: Any) -> "Choice":
        """Read the JSON of a tab."""
        if not isinstance(document, dict) or document.get("vendor") not in VENDORS:
            raise InvalidChoice(f"Choose one of {', '.join(VENDORS)}.")
        texts = {name: str(document.get(name) or "").strip() for name in ("model", "key", "url")}
        choice = cls(document["vendor"], **texts)
        if choice.vendor in {"openai", "anthropic"} and not choice.key:
            raise InvalidChoice("Enter a key.")
        if choice.vendor == "compatible" and not choice.url.startswith(("http://", "https://")):
            raise InvalidChoice("Enter the address of the server, such as http://127.0.0.1:11434/v1.")
        if not choice.model:
            raise InvalidChoice("Enter the name of a model.")
        return choice

    @classmethod
    def from_header(cls, text: str) -> "Choice | None":
        """Read CHOICE_HEADER. None: the tab has chosen nothing."""
        return cls.read(json.loads(unquote(text))) if text else None

    @property
    def name(self) -> str:
        """The model with the prefix of its API."""
        prefix = {"anthropic": "anthropic/", "compatible": "openai-chat/"}.get(self.vendor, "")
        return self.model if not prefix or self.model.startswith(prefix) else f"{prefix}{self.model}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the functions."""
        return {"OMNIAGENT_MODEL": self.name, "OPENAI_BASE_URL": self.url or OPENAI, "ANTHROPIC_BASE_URL": ""}

    @property
    def secret(self) -> str:
        """The secret of the models."""
        name = "ANTHROPIC_API_KEY" if self.vendor == "anthropic" else "OPENAI_API_KEY"
        return json.dumps({name: self.key or "none"})


@dataclass(frozen=True)
class _Chosen:
    """`token` names a choice in the events of the chat function. Its variables hold no key."""

    variables: Mapping[str, str]
    token: str = field(default_factory=secrets.token_urlsafe)


class TabModels:
    """The models that tabs of the page have chosen.

    A tab sends its choice with its requests. The turns that it asks for are answered by processes that were started
    with this choice, and so are the jobs for them: those of a turn that is continued, of a summary, of a name.
    """

    def __init__(
        self,
        secrets: SecretsApi,
        shared_secrets: Mapping[str, str],
        retire: Callable[[Mapping[str, str]], None],
        *,
        offline_url: str = "",
        ollama: str = OLLAMA,
    ) -> None:
        """`retire` ends the processes with these variables."""
        self._secrets = secrets
        self._shared_secrets = shared_secrets
        self._retire = retire
        self._ollama = ollama
        self.has_offline = bool(offline_url)
        self._chosen: dict[Choice, _Chosen] = {}
        # By the session's key: whose turn is answered there.
        self._sessions: dict[str, Choice] = {}

    async def tell(self, choice: Choice | None) -> dict[str, Any]:
        """Describe a tab's choice and what else there is, without a key."""
        names = await self._ollama_models()
        return {
            "vendor": choice.vendor if choice else "stack",
            "has_offline": self.has_offline,
            "ollama": {"url": f"{self._ollama}/v1", "models": names} if names else None,
        }

    def use(self, choice: Choice) -> Mapping[str, str]:
        """Return the variables of the processes that answer with this choice. At most KEPT choices are remembered."""
        if choice not in self._chosen:
            hide(choice.key)
            secrets_at = self._secrets.serve({**self._shared_secrets, "openai": choice.secret})
            self._chosen[choice] = _Chosen({**choice.environment, **secrets_at})
        self._chosen[choice] = self._chosen.pop(choice)  # the newest is the last
        if len(self._chosen) > KEPT:
            self.forget(next(iter(self._chosen)))
        return self._chosen[choice].variables

    def forget(self, choice: Choice) -> None:
        """Forget a choice and its key, and end its processes. A tab that still has it sends it again."""
        if chosen := self._chosen.pop(choice, None):
            self._sessions = {key: other for key, other in self._sessions.items() if other != choice}
            self._secrets.forget(chosen.variables)
            self._retire(chosen.variables)

    def claim(self, session: str, choice: Choice | None) -> None:
        """Note whose turn is answered in a session, by its key: also its jobs use this choice."""
        self._sessions.pop(session, None)
        if choice in self._chosen:
            self._sessions[session] = choice

    def headers(self, choice: Choice | None) -> Headers:
        """Return what a forwarded request carries so that `variables_of` finds the choice. The key is not in it."""
        if choice is None:
            return []
        self.use(choice)
        return [(PROCESS_HEADER, self._chosen[choice].token)]

    def owner(self, session: str) -> Choice | None:
        """Return whose turn is answered in a session, by its key."""
        return self._sessions.get(session)

    def variables_of(self, function: str, event: bytes) -> Mapping[str, str]:
        """Return the variables of the processes that serve an event, added to the function's own."""
        choice: Choice | None = None
        if function == "chat":
            choice = next((each for each, chosen in self._chosen.items() if chosen.token.encode() in event), None)
        elif function in JOBS:
            choice = next((each for key, each in self._sessions.items() if key.encode() in event), None)
        return self._chosen[choice].variables if choice else {}

    async def _ollama_models(self) -> list[str]:
        """Return the models of an Ollama on this machine. Without one, there are none."""
        try:
            async with httpx.AsyncClient(timeout=LOOK_SECONDS, trust_env=False) as http:
                found = (await http.get(f"{self._ollama}/api/tags")).json()
            return [str(model["name"]) for model in found["models"]]
        except (httpx.HTTPError, KeyError, TypeError, ValueError):
            return []
