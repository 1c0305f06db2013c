"""OpenAI's two wire formats, Responses and Chat Completions, on one client."""
