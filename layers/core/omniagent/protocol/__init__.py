"""The stream the client reads: typed events, server-sent events, and the AI SDK's UI messages."""
