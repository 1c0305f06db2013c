"""ASGI on Lambda: handlers, the streaming runtime client and the process's event loop."""
