"""The offline model in a process of its own, so that its work is not the caller's."""

import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import httpx

from local.places import HOME
from local.processes import Service, ServiceError

START_SECONDS = 60.0


class ModelProcess:
    """The model while the context is open. `base_url` is what the OpenAI SDK wants."""

    def __init__(self, *, tokens_per_second: float = 0, port: int = 0, folder: Path | None = None) -> None:
        """Name the pace, 0 for as fast as possible, the port, 0 for a free one, and the folder of the log."""
        self._temporary = tempfile.TemporaryDirectory(prefix="model-") if folder is None else None
        self._folder = folder or Path(self._temporary.name if self._temporary else "")
        self._pace = tokens_per_second
        self._port = port
        self._service: Service | None = None
        self.base_url = ""

    @property
    def pid(self) -> int:
        """The process id of the running model."""
        if self._service is None:
            raise ServiceError("The offline model does not run.")
        return self._service.pid

    def start(self) -> None:
        """Start the model and wait until it listens. A restarted one keeps its port."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self._port), "--tokens-per-second", str(self._pace)]
        service = self._service = Service(
            "The offline model",
            [sys.executable, "-P", "-m", "local.model", *options],
            log=self._folder / "model.log",
            variables={"PYTHONPATH": str(HOME)},
        )
        service.wait_until(lambda: service.log.read_text().endswith("/v1\n"), seconds=START_SECONDS)
        self.base_url = service.log.read_text().splitlines()[-1]
        self._port = httpx.URL(self.base_url).port or 0

    def stop(self) -> None:
        """End the model and every stream of it."""
        if self._service:
            self._service.kill()
            self._service = None

    def check(self) -> None:
        """Raise when the model has ended by itself."""
        if self._service:
            self._service.check()

    def stats(self) -> dict[str, Any]:
        """Return how many requests were made, are active, and were left by their client."""
        found: dict[str, Any] = httpx.get(self.base_url.removesuffix("/v1") + "/_stats", trust_env=False).json()
        return found

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.stop()
        if self._temporary:
            self._temporary.cleanup()
