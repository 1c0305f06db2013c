"""Which model answers on this machine: the offline one, a vendor's with a key from the page, or any compatible server.

A key stays in the memory of this process, and of the functions that read it as a secret. It is never written or logged.
"""

import json
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import httpx

from omniagent.tracing.redaction import hide

OPENAI = "https://api.openai.com/v1"
OLLAMA = "http://127.0.0.1:11434"
LOOK_SECONDS = 0.5
VENDORS = ("offline", "openai", "anthropic", "compatible")


class InvalidChoice(ValueError):
    """The page's choice cannot be used. The message is for the person at the page."""


@dataclass(frozen=True)
class Choice:
    """A model. `url` is the address of a compatible server, empty for a vendor's own."""

    vendor: str
    model: str = ""
    key: str = ""
    url: str = ""

    @classmethod
    def read(cls, document: Any) -> "Choice":
        """Read the JSON that the page sends."""
        if not isinstance(document, dict) or document.get("vendor") not in VENDORS:
            raise InvalidChoice(f"Choose one of {', '.join(VENDORS)}.")
        texts = {name: str(document.get(name) or "").strip() for name in ("model", "key", "url")}
        choice = cls(document["vendor"], **texts)
        if choice.vendor in {"openai", "anthropic"} and not choice.key:
            raise InvalidChoice("Enter a key.")
        if choice.vendor == "compatible" and not choice.url.startswith(("http://", "https://")):
            raise InvalidChoice("Enter the address of the server, such as http://127.0.0.1:11434/v1.")
        if choice.vendor != "offline" and not choice.model:
            raise InvalidChoice("Enter the name of a model.")
        return choice

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the functions."""
        prefix = {"anthropic": "anthropic/", "compatible": "openai-chat/"}.get(self.vendor, "")
        name = self.model if not prefix or self.model.startswith(prefix) else f"{prefix}{self.model}"
        return {"OMNIAGENT_MODEL": name, "OPENAI_BASE_URL": self.url or OPENAI, "ANTHROPIC_BASE_URL": ""}

    @property
    def secret(self) -> str:
        """The secret of the models."""
        name = "ANTHROPIC_API_KEY" if self.vendor == "anthropic" else "OPENAI_API_KEY"
        return json.dumps({name: self.key or "none"})


class ModelChoice:
    """Applies a choice to the functions' environment and secret, and has their processes replaced."""

    def __init__(
        self,
        environment: MutableMapping[str, str],
        secrets: MutableMapping[str, str],
        restart: Callable[[], None],
        *,
        offline_url: str = "",
        ollama: str = OLLAMA,
    ) -> None:
        """Start with the choice that `environment` and `secrets` stand for."""
        self._environment = environment
        self._secrets = secrets
        self._restart = restart
        self._offline_url = offline_url
        self._ollama = ollama
        self._first = {name: environment.get(name) for name in Choice("offline").environment}
        self._first_secret = secrets["openai"]
        self._vendor = "offline" if offline_url else "environment"

    @property
    def offline(self) -> bool:
        """Whether the offline model answers."""
        return self._vendor == "offline"

    async def tell(self) -> dict[str, Any]:
        """Describe the choice and what else there is, without a key."""
        names = await self._ollama_models()
        return {
            "vendor": self._vendor,
            "has_offline": bool(self._offline_url),
            "ollama": {"url": f"{self._ollama}/v1", "models": names} if names else None,
        }

    def choose(self, choice: Choice) -> None:
        """Use another model from the next request on. An answer that is running ends first."""
        if choice.vendor == "offline":
            if not self._offline_url:
                raise InvalidChoice("This stack was started with a model of its own. Restart it without a key.")
            self._apply(self._first, self._first_secret)
        else:
            hide(choice.key)
            self._apply(choice.environment, choice.secret)
        self._vendor = choice.vendor
        self._restart()

    def _apply(self, variables: Mapping[str, str | None], secret: str) -> None:
        for name, value in variables.items():
            if value is None:
                self._environment.pop(name, None)
            else:
                self._environment[name] = value
        self._secrets["openai"] = secret

    async def _ollama_models(self) -> list[str]:
        """Return the models of an Ollama on this machine. Without one, there are none."""
        try:
            async with httpx.AsyncClient(timeout=LOOK_SECONDS, trust_env=False) as http:
                found = (await http.get(f"{self._ollama}/api/tags")).json()
            return [str(model["name"]) for model in found["models"]]
        except (httpx.HTTPError, KeyError, TypeError, ValueError):
            return []
