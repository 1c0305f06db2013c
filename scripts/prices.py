"""`make prices`: write the list prices of models for the playground, from the data of the package `genai-prices`.

The package is no dependency of anything: the Makefile installs it into a folder of its own.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import files, version
from typing import Any

from local.template import ROOT

FILE = ROOT / "local" / "playground" / "vendor" / "prices.js"
VENDORS = ("openai", "anthropic", "google", "aws", "mistral", "deepseek", "x-ai")
HEAD = """/**
 * List prices in US dollars per million tokens: input, output, input read from the cache, input written to it.
 * Written by `make prices` on {day} from genai-prices {version} (MIT, Pydantic). Do not edit.
 */
"""


def prices(providers: Any) -> Iterator[tuple[str, list[float]]]:
    """Yield the current price of each model by its name. Where the prompt's length matters, that of a short one."""
    for provider in (each for vendor in VENDORS for each in providers if each.id == vendor):
        for model in provider.models:
            price = model.get_prices(datetime.now(UTC))
            sent, written = _base(price, "input_mtok"), _base(price, "output_mtok")
            if sent is not None and written is not None:
                cached = (_base(price, name) for name in ("cache_read_mtok", "cache_write_mtok"))
                yield model.id, [sent, written, *(sent if rate is None else rate for rate in cached)]


def _base(price: Any, name: str) -> float | None:
    rate = getattr(price, name, None)
    if rate is None:
        return None
    return float(getattr(rate, "base", rate))


def main() -> int:
    providers = import_module("genai_prices.data").providers
    found: dict[str, list[float]] = {}
    for name, rates in prices(providers):
        found.setdefault(name, rates)
    head = HEAD.format(day=datetime.now(UTC).date().isoformat(), version=version("genai-prices"))
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rates)}" for name, rates in sorted(found.items()))
    FILE.write_text(f"{head}export const MODELS = {{\n{lines},\n}};\n")
    licence = next(each for each in files("genai-prices") or () if each.name == "LICENSE")
    FILE.with_name("PRICES-LICENCE.txt").write_text(licence.read_text())
    print(f"{len(found)} models in {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
