"""The events of turns for the operator's webhook: queued when a turn ends, delivered by the run function."""

from collections.abc import Awaitable, Callable

from omniagent.app.platform import Platform
from omniagent.app.webhook import TurnEvent, WebhookClient
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.store import ConversationStore
from omniagent.session.live import SessionMessage


class Announcements:
    """The events of one deployment."""

    def __init__(self, platform: Platform, store: Callable[[], Awaitable[ConversationStore]]) -> None:
        self._platform = platform
        self._settings = platform.settings
        self._store = store

    async def announce(self, key: str, answer: SessionMessage) -> None:
        """Queue the event of a turn's end, then record it. If that fails, it may be sent twice, with the same id."""
        event = TurnEvent.of(key, answer)
        message = {"kind": "webhook", "session_id": key, "event": event.model_dump(mode="json")}
        await self._platform.run_queue.send(message)
        await Catalog(await self._store()).note_announced(key, answer.id, event.id)

    async def deliver(self, key: str, event: TurnEvent, *, again: bool = False) -> bool:
        """Send an event to the webhook. Returns False if none is set, or the session's user is deleted.

        Raises `WebhookFailed`. `again`: an earlier delivery failed, so the secret is read again.
        """
        settings = self._settings
        if not settings.webhook_url:
            return False
        store = await self._store()
        address = await store.address_of(key)
        if address is None:
            return False
        secret = await self._platform.secret("webhook", refresh=again)
        body = event.body(user=address.user, session_id=address.session_id)
        await WebhookClient(settings.webhook_url).deliver(event.id, body, secret)
        return True
