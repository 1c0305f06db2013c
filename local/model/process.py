"""The offline model in a process of its own, so that its work is not the caller's."""

import sys
from pathlib import Path

import httpx

from local.places import HOME
from local.processes import LocalServer, Service

START_SECONDS = 60.0


class ModelProcess(LocalServer):
    """The model while the context is open. `base_url` is what the OpenAI SDK wants."""

    def __init__(self, *, tokens_per_second: float = 0, port: int = 0, folder: Path | None = None) -> None:
        """Name the pace, 0 for as fast as possible, the port, 0 for a free one, and the folder of the log."""
        super().__init__("The offline model", folder)
        self._pace = tokens_per_second
        self._port = port
        self.base_url = ""

    def start(self) -> None:
        """Start the model and wait until it listens. A restarted one keeps its port."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self._port), "--tokens-per-second", str(self._pace)]
        service = self._service = Service(
            self._name,
            [sys.executable, "-P", "-m", "local.model", *options],
            log=self.folder / "model.log",
            variables={"PYTHONPATH": str(HOME)},
        )
        service.wait_until(lambda: service.log.read_text().endswith("/v1\n"), seconds=START_SECONDS)
        self.base_url = service.log.read_text().splitlines()[-1]
        self._port = httpx.URL(self.base_url).port or 0
