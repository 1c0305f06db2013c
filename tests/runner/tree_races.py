"""Races of edits, regenerations, switches and messages after any node with each other, with stops and with kills.

Each race is one session, as in `busy_races`. In the end its history must be one tree with one active leaf: every
accepted message and every answer is in it once, where its request put it, and the path of each can be read.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from omniagent import Query
from omniagent.errors import OmniAgentError
from omniagent.messages import steering_of
from omniagent.session.live import SessionMessage
from tests.runner.busy_races import BUSY, Race

KINDS = ("send", "send after", "edit", "regenerate newest", "regenerate older", "switch")
FAULTS = ("lost", "doubled", "on a wrong branch", "without one leaf", "unreadable", "run twice")


class TreeRace(Race):
    """One session whose history branches."""

    chances: ClassVar[Mapping[str, int]] = {**dict.fromkeys(KINDS, 3), "send": 2, "answer": 4, "stop": 2, "kill": 2}
    events = (4, 9)

    @property
    def nodes(self) -> list[SessionMessage]:
        """The history, in the order of its creation."""
        stored = self.sessions.store.sessions.get(self.sessions.session().key)
        return [] if stored is None else stored.messages

    async def _begin(self) -> None:
        for _ in range(2):  # something to branch from
            await self._ask("send", self._message("queue"))
            await self._pause()

    def _nodes(self) -> Sequence[str]:
        return [each.node for each in self.nodes]

    async def _request(self, kind: str) -> None:
        await (self._switch() if kind == "switch" else self._branch(kind))

    async def _branch(self, kind: str) -> None:
        questions = [each for each in self.nodes if each.role == "user"]
        answers = [each for each in self.nodes if each.role == "assistant"]
        new = self._message(self.dice.choice(BUSY))
        if kind == "send" or not answers:
            await self._ask("send", new)
        elif kind == "send after":
            after = self.dice.choice(answers).node
            await self._ask(kind, replace(new, parent=after), after)
        elif kind == "edit":
            old = self.dice.choice(questions)
            await self._ask(kind, replace(new, message_id=old.id, parent=old.parent), old.parent)
        else:
            newest = max(answers, key=lambda each: each.turn_number)
            old = newest if kind == "regenerate newest" else self.dice.choice(answers)
            await self._ask(kind, Query(regenerate=True, replaces=old.node, busy=new.busy), old.parent)

    async def _ask(self, kind: str, query: Query, parent: str | None = None) -> None:
        """Send a request, now and then twice."""
        for _ in range(self.dice.choice((1, 1, 1, 2)) if not query.regenerate else 1):
            self.counts[kind] += 1
            await self._send(query, parent, seconds=self.dice.choice((0.001, 0.02)))

    async def _switch(self) -> None:
        """Switch to any message. A turn that runs would refuse it: now and then, wait for its end."""
        for _ in range(self.dice.choice((1, 20))):
            head = await self.sessions.head()
            if head.running is None and not head.queue:
                break
            await asyncio.sleep(0.002)
        if self.nodes:
            with suppress(OmniAgentError):
                await self._runner(self._process()).switch(self.dice.choice(self.nodes).node)
                self.counts["switch"] += 1

    async def _check(self) -> None:
        nodes = {each.node: each for each in self.nodes}
        children = Counter(each.parent for each in self.nodes)
        places = Counter((each.branch, each.place.order) for each in self.nodes)
        self._found("doubled", len(nodes) != len(self.nodes), "a node is stored twice")
        self._found("doubled", max(places.values()) > 1, places)
        self._check_requests(nodes)
        unanswered = [each.node for each in self.nodes if each.role == "user" and not children[each.node]]
        self._found("lost", bool(unanswered), ("no answer", unanswered))
        leaf = (await self.sessions.head()).leaf
        is_leaf = leaf.node in nodes and nodes[leaf.node].place == leaf and not children[leaf.node]
        self._found("without one leaf", not is_leaf, leaf)
        await self._check_paths(nodes, [node for node in nodes if not children[node]])
        self._found("run twice", any(number > 1 for number in self.paid.values()), self.paid)
        self.counts.update(each.status for each in self.nodes if each.role == "assistant")
        self.counts["branches"] += len({each.branch for each in self.nodes})

    def _check_requests(self, nodes: dict[str, SessionMessage]) -> None:
        # A message that joined an answer is in every alternative to it.
        homes = {
            (each.node if each.role == "user" else each.parent, text) for each in self.nodes for text in _said(each)
        }
        said = Counter(text for _, text in homes)
        accepted = {each.query.text for each in self.posted if each.is_accepted}
        for text in {each.query.text for each in self.posted if each.query.text}:
            self._found("lost", text in accepted and not said[text], (text, said))
            self._found("doubled", said[text] > 1, (text, said))
        for asked in self.posted:
            if text := asked.query.text:
                found = [each for each in self.nodes if each.role == "user" and each.text == text]
                is_joined = not found and said[text] > 0
                is_steering = asked.query.busy == "steer"
                is_astray = any(each.parent != asked.parent for each in found) or (is_joined and not is_steering)
            else:
                answer = nodes.get(asked.stream.message_id) if asked.stream is not None else None
                self._found("lost", asked.stream is not None and answer is None, asked)
                is_astray = answer is not None and answer.parent != asked.parent
            self._found("on a wrong branch", asked.parent is not None and is_astray, asked)

    async def _check_paths(self, nodes: dict[str, SessionMessage], ends: Sequence[str]) -> None:
        """The path of each node follows its parents, and every end can be made the active leaf."""
        runner = self.sessions.runner(self.model)
        for node in nodes:
            shown = [each.node for each in await runner.history(branch=node)]
            self._found("unreadable", shown != _path(nodes, node), (node, shown))
            ids = Counter(nodes[each].id for each in shown)
            self._found("doubled", max(ids.values(), default=0) > 1, ids)
        for node in ends:
            await runner.switch(node)
            self._found("lost", (await self.sessions.head()).leaf != nodes[node].place, ("branch", node))


def _said(message: SessionMessage) -> list[str]:
    """The user's messages that a stored message holds."""
    return [message.text] if message.role == "user" else [part.text for part in steering_of(message.parts)]


def _path(nodes: dict[str, SessionMessage], node: str) -> list[str]:
    path: list[str] = []
    while node:
        path.insert(0, node)
        node = nodes[node].parent if node in nodes else ""
    return path
