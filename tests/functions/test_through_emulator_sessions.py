"""Every route of the sessions function, through its Function URL and a real process."""

from tests.fixtures.calls import User
from tests.fixtures.problems import check_problem
from tests.fixtures.product import Product


async def test_a_session_is_made_once(user: User) -> None:
    made = await user.call("POST", "/sessions", json={"id": user.session, "name": "Plans"})
    again = await user.call("POST", "/sessions", json={"id": user.session, "name": "Other"})
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == again.json()
    assert made.json() | {"id": user.session, "name": "Plans", "latestTurnNumber": 0, "answering": False} == made.json()
    assert (await user.call("POST", "/sessions")).status_code == 201


async def test_sessions_are_listed_by_use_page_by_page(user: User) -> None:
    for session in ("a", "b", "c"):
        await user.call("POST", "/sessions", json={"id": session})
    await user.call("POST", "/chat?stream=false", json={"session_id": "a", "query": "Hello"})
    first = (await user.call("GET", "/sessions?limit=2")).json()
    rest = (await user.call("GET", "/sessions", params={"limit": 2, "before": first["before"]})).json()
    assert [session["id"] for session in first["sessions"] + rest["sessions"]] == ["a", "c", "b"]
    assert rest["before"] is None
    check_problem(await user.call("GET", "/sessions?before=nonsense"), 422, "invalid_request")
    check_problem(await user.call("GET", "/sessions?limit=0"), 422, "invalid_request")


async def test_a_session_is_read_renamed_and_deleted(product: Product, user: User) -> None:
    await user.ask("Hello")
    assert (await user.call("GET", "/sessions/{}")).json()["latestTurnNumber"] == 1
    renamed = await user.call("PATCH", "/sessions/{}", json={"name": "Lisbon in November"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "Lisbon in November")
    deleted = await user.call("DELETE", "/sessions/{}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    check_problem(await user.call("GET", "/sessions/{}"), 404, "not_found")
    check_problem(await user.call("DELETE", "/sessions/{}"), 404, "not_found")
    assert product.stored(user) == []


async def test_messages_are_what_the_stream_was(user: User) -> None:
    events = await user.ask("[echo:It is done]", message_id="m1")
    question, answer = await user.messages()
    assert question == {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "[echo:It is done]"}]}
    [finish] = [event for event in events if event["type"] == "finish"]
    assert (answer["id"], answer["metadata"]) == (events[0]["messageId"], finish["messageMetadata"])
    assert answer["parts"][-1] == {"type": "text", "text": "It is done", "state": "done"}


async def test_one_message_is_deleted(user: User) -> None:
    await user.ask("Hello", message_id="m1")
    assert (await user.call("DELETE", "/sessions/{}/messages/m1")).status_code == 204
    assert [message["role"] for message in await user.messages()] == ["assistant"]
    check_problem(await user.call("DELETE", "/sessions/{}/messages/m1"), 404, "not_found")


async def test_the_model_names_a_session(user: User) -> None:
    await user.ask("Which tram leads up to the castle of Lisbon?")
    named = await user.call("POST", "/sessions/{}/name")
    assert named.status_code == 200
    assert named.json()["name"]
    assert (await user.call("GET", "/sessions/{}")).json()["name"] == named.json()["name"]


async def test_a_user_goes_with_all_sessions(product: Product, user: User) -> None:
    await user.ask("Hello")
    await user.call("POST", "/sessions", json={"id": "another"})
    assert (await user.call("DELETE", "/users/me")).status_code == 204
    assert (await user.call("GET", "/sessions")).json()["sessions"] == []
    assert product.stored(user) == []


async def test_nobody_learns_of_another_users_session(product: Product, user: User) -> None:
    await user.ask("Hello")
    stranger = User(product.emulator, product.http, session=user.session)
    for method, path in [
        ("GET", "/sessions/{}"),
        ("DELETE", "/sessions/{}"),
        ("GET", "/sessions/{}/messages"),
        ("POST", "/sessions/{}/cancel"),
        ("POST", "/sessions/{}/name"),
        ("GET", "/sessions/{}/summary"),
        ("POST", "/sessions/{}/summary"),
    ]:
        check_problem(await stranger.call(method, path), 404, "not_found")
    check_problem(await stranger.call("PATCH", "/sessions/{}", json={"name": "Mine"}), 404, "not_found")
    assert (await stranger.call("GET", "/sessions")).json()["sessions"] == []
    assert len(product.stored(user)) == 2


async def test_what_cannot_be_done_is_refused_with_a_problem(user: User) -> None:
    given = {"content-type": "application/json"}
    check_problem(await user.call("POST", "/sessions", content="{", headers=given), 400, "malformed_request")
    text = {"content-type": "text/plain"}
    check_problem(await user.call("POST", "/sessions", content="{}", headers=text), 415, "unsupported_media_type")
    check_problem(await user.call("POST", "/sessions", json={"id": "a b"}), 422, "invalid_request")
    check_problem(await user.call("PATCH", "/sessions/{}", json={"name": ""}), 422, "invalid_request")
    check_problem(await user.call("GET", "/nowhere"), 404, "not_found")
    check_problem(await user.call("PUT", "/sessions"), 405, "method_not_allowed")


async def test_the_api_describes_itself_only_where_asked_to(product: Product, user: User) -> None:
    check_problem(await user.call("GET", "/openapi.json"), 404, "not_found")
