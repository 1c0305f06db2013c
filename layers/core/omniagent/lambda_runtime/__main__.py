"""The exec wrapper's entry point. A separate module, so that `runtime` is not loaded twice."""

import gc

# Modules are not garbage: collections during the imports of a cold start find nothing and cost 5 % of it.
# `StreamingRuntimeClient` turns them on again when it asks for the first event.
gc.disable()

from omniagent.lambda_runtime.runtime import main  # noqa: E402 - collections are off before the imports

main()
