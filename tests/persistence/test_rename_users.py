"""The users of 0.1's `jwt` mode keep their chats when their ids change."""

from collections.abc import Iterator

import pytest

from local.model import OfflineModel
from omniagent.http.auth import token_user
from omniagent.session.manager import user_id_of
from scripts.rename_users import main, rename_users
from tests.fixtures.issuer import AUDIENCE, Issuer
from tests.fixtures.world import User, World, open_world

SUBJECT = "auth0|ada lovelace"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def world(mongod: str, model: OfflineModel, issuer: Issuer) -> Iterator[World]:
    with open_world(mongod, model.base_url, auth_mode="jwt", jwt_issuer=issuer.url, jwt_audience=AUDIENCE) as world:
        yield world


@pytest.fixture
def ada(world: World, issuer: Issuer) -> User:
    """Somebody with one answered turn, as 0.1 stored it."""
    headers = {"authorization": f"Bearer {issuer.token(sub=SUBJECT)}"}
    ada = User(world.client(signed=False, headers=headers), token_user(issuer.url, SUBJECT))
    ada.ask("Hello")
    _as_in_01(world, ada)
    assert ada.call("GET", "/sessions/{}").status_code == 404
    return ada


def _as_in_01(world: World, user: User) -> None:
    before, after = user_id_of(user.client_id), user_id_of(f"jwt:{SUBJECT}")
    key = f"{after}:{user.session}"
    for name, changes in (
        ("users", {"_id": after, "client_id": f"jwt:{SUBJECT}"}),
        ("sessions", {"_id": key, "user_id": after}),
    ):
        [document] = world.database[name].find()
        world.database[name].delete_one({"_id": document["_id"]})
        world.database[name].insert_one({**document, **changes})
    world.database["messages"].update_many({"session_id": f"{before}:{user.session}"}, {"$set": {"session_id": key}})


def test_a_users_chats_are_found_again(
    world: World, ada: User, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONGODB_URI", world.application.settings.mongodb_uri)
    monkeypatch.setenv("MONGODB_DATABASE", world.database.name)
    assert main([issuer.url]) == 0
    assert capsys.readouterr().out == "1 users and 1 sessions renamed\n"
    assert len(ada.messages()) == 2
    ada.ask("And now?")
    assert len(ada.messages()) == 4
    assert rename_users(world.database, issuer.url).users == 0


def test_a_run_that_was_stopped_is_taken_up(world: World, ada: User, issuer: Issuer) -> None:
    [session] = world.database["sessions"].find()
    renamed = {"_id": ada.key, "user_id": user_id_of(ada.client_id)}
    world.database["sessions"].insert_one({**session, **renamed})
    world.database["messages"].update_one({}, {"$set": {"session_id": ada.key}})
    assert rename_users(world.database, issuer.url).left == ()
    assert len(ada.messages()) == 2


@pytest.mark.parametrize("reason", ["answering", "taken"])
def test_what_cannot_be_moved_is_named_and_left(reason: str, world: World, ada: User, issuer: Issuer) -> None:
    [session] = world.database["sessions"].find()
    if reason == "answering":
        world.database["sessions"].update_one({}, {"$set": {"active_turn_id": "t"}})
    else:
        ada.ask("Hello again")
    done = rename_users(world.database, issuer.url)
    assert (done.users, done.left) == (0, (session["_id"],))
    assert world.database["messages"].count_documents({"session_id": session["_id"]}) == 2
