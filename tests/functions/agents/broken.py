"""An agent for tests that cannot be imported."""

raise RuntimeError("this agent is broken")
