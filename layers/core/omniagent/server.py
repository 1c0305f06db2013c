"""The HTTP API in a server of your own: an `Application`, and the two apps to mount, with your authentication."""

from typing import TYPE_CHECKING

from omniagent.lazy import lazy_names

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator as TurnOperator
    from omniagent.app.application import Application as Application
    from omniagent.app.platform import Platform as Platform
    from omniagent.http.auth import Authenticate as Authenticate, Caller as Caller
    from omniagent.http.chat_app import chat_app as chat_app
    from omniagent.http.sessions_app import sessions_app as sessions_app
else:  # a type checker would take any name for one of `__getattr__`
    __all__, __getattr__, __dir__ = lazy_names(__name__, extra="server")
