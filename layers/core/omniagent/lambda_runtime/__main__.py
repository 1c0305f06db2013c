"""The exec wrapper's entry point. A separate module, so that `runtime` is not loaded twice."""

from omniagent.lambda_runtime.runtime import main

main()
