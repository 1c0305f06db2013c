"""The exec wrapper's entry point: serves the function named by `_HANDLER` until the environment is shut down."""

import gc

# Garbage collections during the imports find nothing and cost 5 % of a cold start.
# `StreamingRuntimeClient` enables them again when it asks for the first event.
gc.disable()

import os  # noqa: E402 - collections are off before the imports
import site  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from awslambdaric import bootstrap  # type: ignore[import-untyped]  # noqa: E402
from awslambdaric.lambda_config import LambdaConfigProvider  # type: ignore[import-untyped]  # noqa: E402

from omniagent.lambda_runtime.runtime import StreamingRuntimeClient  # noqa: E402


def set_path() -> None:
    """Order `sys.path` as the managed runtime's bootstrap does: function, layer, the rest."""
    layer = Path(__file__).parents[2]
    site_packages = layer / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    first = [os.environ["LAMBDA_TASK_ROOT"], str(site_packages), str(layer)]
    sys.path[:] = first + [entry for entry in sys.path if entry not in first]
    for directory in first:
        site.addsitedir(directory)  # for .pth files


def main() -> None:
    set_path()
    # Pydantic would read the metadata of every installed package to look for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    config = LambdaConfigProvider([sys.argv[0], os.environ["_HANDLER"]])
    client = StreamingRuntimeClient(config.api_address, config.use_thread_polling)
    if config.is_multi_concurrent:
        from omniagent.lambda_runtime.shared_process import SharedProcessClient  # only on Managed Instances

        client = SharedProcessClient(config.api_address, config.handler, int(config.max_concurrency))
    bootstrap.run(config.handler, client)


main()
