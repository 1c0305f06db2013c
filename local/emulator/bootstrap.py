"""Replaces the managed runtime's bootstrap: sets the same path, then runs awslambdaric.

It is copied next to a layer folder `opt`, and runs there without the rest of this package.
"""

import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Replace this script's folder on the path with the function and its layers, and serve."""
    layer = Path(__file__).absolute().parent.parent / "opt" / "python"
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    sys.path[0:1] = [os.environ["LAMBDA_TASK_ROOT"], str(layer), str(layer / packages)]

    # Imported from the layer, which is on the path only now.
    from awslambdaric.__main__ import main as serve  # type: ignore[import-untyped]

    take_path_of_address()
    serve(["bootstrap.py", os.environ["_HANDLER"]])


def take_path_of_address() -> None:
    """Let awslambdaric report a failed start to an address with a path, which only its native client supports."""
    from awslambdaric.lambda_runtime_client import BaseLambdaRuntimeClient as Client  # type: ignore[import-untyped]

    call = Client.call_rapid

    def call_rapid(client: Any, http_method: str, endpoint: str, *arguments: Any) -> None:
        address = client.lambda_runtime_address
        client.lambda_runtime_address, slash, path = address.partition("/")
        try:
            call(client, http_method, f"{slash}{path}{endpoint}", *arguments)
        finally:
            client.lambda_runtime_address = address

    Client.call_rapid = call_rapid


if __name__ == "__main__":
    main()
