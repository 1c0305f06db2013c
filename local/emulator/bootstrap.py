"""Stands in for the managed runtime's bootstrap: sets the path as it does, then runs awslambdaric.

It is copied next to a layer folder `opt`, and runs there without the rest of this package.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Put the function and its layers on the path in place of this script's folder, and serve."""
    layer = Path(__file__).absolute().parent.parent / "opt" / "python"
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    sys.path[0:1] = [os.environ["LAMBDA_TASK_ROOT"], str(layer), str(layer / packages)]

    # From the layer, which is only now on the path.
    from awslambdaric.__main__ import main as serve  # type: ignore[import-untyped]

    serve(["bootstrap.py", os.environ["_HANDLER"]])


if __name__ == "__main__":
    main()
