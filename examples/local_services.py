"""MongoDB and a model for the examples, started here where the environment names none."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from local.model import OfflineModel
from local.mongod import Mongod
from local.template import ROOT


@contextmanager
def local_services() -> Iterator[None]:
    """Set MONGODB_URI and OPENAI_BASE_URL for this process, unless they (or OPENAI_API_KEY) are set already.

    MongoDB is a real one with its data in .local/example; the model is the offline model of `make run`.
    """
    with ExitStack() as services:
        if not os.environ.get("MONGODB_URI"):
            os.environ["MONGODB_URI"] = services.enter_context(Mongod(ROOT / ".local/example")).uri
        if not os.environ.get("OPENAI_BASE_URL") and not os.environ.get("OPENAI_API_KEY"):
            os.environ["OPENAI_BASE_URL"] = services.enter_context(OfflineModel()).base_url
        yield
