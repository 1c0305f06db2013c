"""Random trees: after every operation the session has the path that parent pointers give, in every store."""

import random
from dataclasses import dataclass, field

import pytest

from omniagent.messages import Part, Status
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.session.ids import new_id
from omniagent.session.in_memory import InMemorySessionManager, InMemoryStore
from omniagent.session.live import MAX_LINEAGE, LiveTurn, SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.session.query import Query
from omniagent.settings import Settings
from omniagent.turns.decisions import Decision, Replay, Run
from omniagent.turns.state import decide
from omniagent.turns.state_events import Begin, End, Switch
from tests.fixtures.examples import examples
from tests.persistence.turns import NOW, apply, summary, text
from tests.session.sessions import Open

WINDOW = Settings(context_max_turns=3)


@dataclass
class Node:
    """A message as the model of the test knows it."""

    id: str
    role: str
    parent: str
    said: str
    status: Status = "complete"
    is_deleted: bool = False


@dataclass
class Tree:
    """A conversation, and a model of it: nodes with their parents, in the order of their creation."""

    session: SessionManager
    random: random.Random
    nodes: dict[str, Node] = field(default_factory=dict)
    leaf: str = ""
    count: int = 0

    def path(self, node: str) -> list[str]:
        """The nodes from the first message to this one."""
        path: list[str] = []
        while node:
            path.insert(0, node)
            node = self.nodes[node].parent
        return path

    def left(self, nodes: list[str], role: str) -> list[str]:
        return [node for node in nodes if self.nodes[node].role == role and not self.nodes[node].is_deleted]

    def said(self) -> str:
        self.count += 1
        return f"Text {self.count}"

    async def ask(self, query: Query, *, parts: list[Part] | None = None, status: Status = "complete") -> Decision:
        """Decide about a message and, if it gets a turn, store its answer."""
        state = await self.session.load(query)
        decision = decide(state, query, now=NOW)
        if not isinstance(decision, Run):
            return decision
        turn_id, asked, spot = new_id(), decision.message, state.spot
        turn = LiveTurn(
            turn_id, asked.turn_number, "run", turn_id, asked.id, NOW, question=asked.node,
            message=asked if decision.is_new else None, branch=spot.branch, lineage=spot.lineage,
        )  # fmt: skip
        shown = text(self.said()) if parts is None else parts
        answer = SessionMessage(turn_id, "assistant", asked.turn_number, shown, status)
        await apply(self.session, Begin(turn, decision.closes))
        await apply(self.session, End("run", answer))
        if decision.is_new:
            self.nodes[asked.node] = Node(asked.id, "user", asked.parent, asked.text)
        self.nodes[turn_id] = Node(turn_id, "assistant", asked.node, answer.text, status)
        if shown or decision.is_new:
            self.leaf = turn_id
        return decision

    async def send(self) -> None:
        """After any answer, the latest, or as another beginning."""
        after = self.random.choice([*self.left(list(self.nodes), "assistant"), None, ""])
        decision = await self.ask(
            Query(self.said(), new_id(), parent=after), status=self.random.choice(["complete", "failed"])
        )
        assert isinstance(decision, Run)
        assert decision.message.parent == (after if after is not None else self.before_next)

    async def edit(self) -> None:
        if asked := self.left(self.path(self.leaf), "user"):
            old = self.nodes[self.random.choice(asked)]
            parent = old.parent if not self.is_deleted(old.parent) and self.random.random() < 0.5 else None
            decision = await self.ask(Query(self.said(), old.id, parent=parent))
            assert isinstance(decision, Run)
            assert (decision.message.id, decision.message.parent) == (old.id, old.parent)

    async def regenerate(self) -> None:
        answers = self.left(self.path(self.leaf), "assistant")
        answers = [answer for answer in answers if not self.is_deleted(self.nodes[answer].parent)]
        if answers:
            answer = self.random.choice(answers)
            parts = None if self.random.random() < 0.8 else list[Part]()
            decision = await self.ask(Query(regenerate=True, replaces=answer), parts=parts)
            assert isinstance(decision, Run)
            assert decision.message.node == self.nodes[answer].parent

    async def retry(self) -> None:
        """The same message again: its answer, or another one if that has failed and nothing follows."""
        path = self.path(self.leaf)
        if asked := self.left(path, "user"):
            node = self.random.choice(asked)
            answer = path[path.index(node) + 1] if path[-1] != node else ""
            is_last = answer == self.leaf and self.nodes[answer].status == "failed"
            decision = await self.ask(Query(self.nodes[node].said, self.nodes[node].id))
            if self.is_deleted(answer):
                return
            assert isinstance(decision, Run) == is_last
            assert is_last or (isinstance(decision, Replay) and decision.answer.node == answer)

    async def switch(self) -> None:
        if there := [node for node in self.nodes if not self.nodes[node].is_deleted]:
            node = self.random.choice(there)
            message = await self.session.node(node)
            assert message is not None
            await apply(self.session, Switch(await self.session.end_of(message.place)))
            self.leaf = [each for each in there if node in self.path(each)][-1]

    async def delete(self) -> None:
        there = [node for node in self.nodes if not self.nodes[node].is_deleted]
        if there and isinstance(self.session, MongoSessionManager):
            node = self.random.choice(there)
            await Catalog(self.session.store).delete_message(self.session.key, node)
            self.nodes[node].is_deleted = True

    def is_deleted(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].is_deleted

    @property
    def before_next(self) -> str:
        """The leaf before the message that was sent last."""
        return self.path(self.leaf)[-3] if len(self.path(self.leaf)) > 2 else ""

    async def check(self) -> None:
        head = await self.session.head()
        if head is None:
            assert not self.nodes
            return
        assert (head.leaf.node, head.turn) == (self.leaf, None)
        expected = [node for node in self.path(self.leaf) if not self.nodes[node].is_deleted]
        path = await self.session.path(head.leaf)
        assert [message.node for message in path] == expected

    async def check_window(self) -> None:
        """What the model is shown is the end of the path."""
        expected = [node for node in self.path(self.leaf) if not self.nodes[node].is_deleted]
        state = await self.session.load()
        shown = [message.text for turn in state.turns for message in turn.messages]
        assert shown == [self.nodes[node].said for node in expected][-len(shown) :] if shown else not expected


async def grow(tree: Tree, operations: int) -> None:
    steps = [tree.send, tree.send, tree.send, tree.edit, tree.regenerate, tree.retry, tree.switch, tree.delete]
    for _ in range(operations):
        await tree.random.choice(steps)()
        await tree.check()
    await tree.check_window()


async def test_the_path_of_random_trees_follows_the_parents_in_memory() -> None:
    for seed in range(examples(100)):
        session = InMemorySessionManager("ada", "chat", store=InMemoryStore(), settings=WINDOW)
        await grow(Tree(session, random.Random(seed)), 8)


async def test_the_path_of_random_trees_follows_the_parents_in_mongodb(store: ConversationStore) -> None:
    for seed in range(examples(4)):
        session = MongoSessionManager(store, f"user:{new_id()}", settings=WINDOW)
        await grow(Tree(session, random.Random(seed)), 25)


async def test_a_path_of_more_branches_than_a_lineage_has_is_whole(open_session: Open) -> None:
    session = open_session(settings=WINDOW)
    tree, turns = Tree(session, random.Random(0)), MAX_LINEAGE + 6
    for number in range(turns):
        await tree.ask(Query(tree.said(), f"m{number}"))
        await tree.ask(Query(regenerate=True))
    await tree.check()
    head = await session.head()
    assert head is not None
    assert (head.branches, len(head.leaf.lineage)) == (turns, MAX_LINEAGE)
    whole = [message.node for message in await session.path(head.leaf)]
    assert len(whole) == 2 * turns
    assert [message.node for message in await session.path(head.leaf.up_to(3))] == whole[:6]
    assert [message.node for message in await session.path(head.leaf.up_to(3), first=2, limit=3)] == whole[3:6]
    early = await session.node(whole[3])
    assert early is not None
    assert await session.add_summary(summary(1, 2, early.branch), early.place)
    assert await session.latest_summary(head.leaf) == summary(1, 2, early.branch)
    edited = await tree.ask(Query("Edited", "m0"))
    assert isinstance(edited, Run)
    assert edited.message.parent == ""


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_the_rest_of_a_path_is_read_where_messages_are_deleted(store: ConversationStore, role: str) -> None:
    tree = Tree(MongoSessionManager(store, f"user:{new_id()}", settings=WINDOW), random.Random(0))
    for number in range(4):
        await tree.ask(Query(tree.said(), f"m{number}"))
        await tree.ask(Query(regenerate=True))
    for node in tree.left(tree.path(tree.leaf), role):
        await Catalog(store).delete_message(tree.session.key, node)
        tree.nodes[node].is_deleted = True
        await tree.check()
    await tree.check_window()


async def test_the_place_of_a_deleted_message_that_others_follow_is_not_used_again(store: ConversationStore) -> None:
    session = MongoSessionManager(store, f"user:{new_id()}", settings=WINDOW)
    tree = Tree(session, random.Random(0))
    for number in range(3):
        await tree.ask(Query(tree.said(), f"m{number}"))
    main = tree.path(tree.leaf)
    await tree.ask(Query(tree.said(), "sibling", parent=main[3]))
    sibling = await session.node(tree.leaf)
    for node in main[2:]:
        await Catalog(store).delete_message(session.key, node)
        tree.nodes[node].is_deleted = True
    await tree.ask(Query(tree.said(), "new", parent=main[1]))
    await tree.check()
    assert sibling is not None
    assert [message.node for message in await session.path(sibling.place)] == [*main[:2], sibling.parent, sibling.node]
