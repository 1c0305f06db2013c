"""OmniAgent: a session-aware AI chat runtime."""
