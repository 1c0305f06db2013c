"""What the exec wrapper starts. A module of its own, so that `runtime` is never loaded twice."""

from omniagent.lambda_runtime.runtime import main

main()
