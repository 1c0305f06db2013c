"""The events of turns for the operator's webhook: queued when a turn ends, delivered by the run function."""

from collections.abc import Awaitable, Callable

from omniagent.app.platform import Platform
from omniagent.app.webhook import TurnEvent, WebhookClient
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import SessionMessage, message_id_of


class Announcements:
    """The events of one deployment."""

    def __init__(self, platform: Platform, store: Callable[[], Awaitable[ConversationStore]]) -> None:
        self._platform = platform
        self._settings = platform.settings
        self._store = store

    async def announce(self, key: str, answer: SessionMessage, *, kept: str | None = None) -> None:
        """Queue the event of a turn's end, then record it. If recording fails, it may be sent twice, with the same id.

        `kept` is the id of the previous answer, if a regeneration showed nothing and left it in place.
        """
        event = TurnEvent.of(key, answer, kept=kept)
        message = {"kind": "webhook", "session_id": key, "event": event.model_dump(mode="json")}
        await self._platform.run_queue.send(message)
        if kept is None:
            await Catalog(await self._store()).note_announced(key, answer.id, event.id)

    async def announce_missed(self, key: str, turn_id: str) -> bool:
        """Announce the end of a turn whose own process did not: it died, or another process closed the turn."""
        if not self._settings.webhook_url:
            return False
        found = await Catalog(await self._store()).find_announced(key, message_id_of(turn_id))
        if found is None or found[1] == TurnEvent.of(key, found[0]).id:
            return False
        if found[0].status == "waiting" and not found[0].pending:
            return False  # every request is answered: the turn continues, and its end is announced later
        await self.announce(key, found[0])
        return True

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
