"""The HTTP API in a server of your own: an `Application`, and the two apps to mount, with your authentication."""

from omniagent.app.application import Application
from omniagent.http.auth import Authenticate, Caller
from omniagent.http.chat_app import chat_app
from omniagent.http.sessions_app import sessions_app

__all__ = ["Application", "Authenticate", "Caller", "chat_app", "sessions_app"]
