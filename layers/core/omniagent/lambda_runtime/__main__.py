"""The exec wrapper's entry point. A separate module, so that `runtime` is not loaded twice."""

import gc

# Garbage collections during the imports find nothing and cost 5 % of a cold start.
# `StreamingRuntimeClient` enables them again when it asks for the first event.
gc.disable()

from omniagent.lambda_runtime.runtime import main  # noqa: E402 - collections are off before the imports

main()
