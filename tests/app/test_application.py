"""What a process makes once: opened when needed, shared, tried again, and renewed after a rotation."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pymongo import MongoClient

from local.aws import Aws
from local.model import OfflineModel
from omniagent import Agent, Budget, Callbacks, Project, RunContext, RunResult
from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.ai.providers.model_calls import complete
from omniagent.app.application import Application
from omniagent.app.on_lambda import AwsPlatform, get_application
from omniagent.app.platform import Platform
from omniagent.app.summary_jobs import SummaryJobs
from omniagent.aws.secrets import SecretStore
from omniagent.errors import ConfigurationError, ModelAuthError, ModelUnavailable, NoQueue, StorageRejected
from omniagent.http.chat_app import chat_app
from omniagent.http.sessions_app import sessions_app
from omniagent.messages import ChatMessage
from omniagent.persistence.driver_errors import is_refused_login
from omniagent.session.ids import new_id
from omniagent.settings import Settings
from omniagent.testing import Gate, ScriptedModel
from tests.fixtures.live_turns import begin_turn

PROJECT = Project(agent=Agent("helper", "Be helpful."))
SetPassword = Callable[[str], str]


@pytest.fixture
async def application(mongod: str) -> AsyncIterator[Application]:
    application = Application(
        PROJECT, AwsPlatform(Settings(mongodb_uri=mongod, mongodb_database=f"services_{new_id()[:8]}"))
    )
    yield application
    await application.close()
    with MongoClient[dict[str, Any]](mongod) as client:
        client.drop_database(application.settings.mongodb_database)


@pytest.fixture
def set_password(mongod: str) -> SetPassword:
    """Gives a MongoDB user a password and returns the address with it. The server checks logins it does not need."""
    user = f"user-{new_id()[:8]}"

    def change(password: str) -> str:
        with MongoClient[dict[str, Any]](mongod) as client:
            known = client.admin.command("usersInfo", user)["users"]
            command = "updateUser" if known else "createUser"
            client.admin.command(command, user, pwd=password, roles=["root"])
        return mongod.replace("://", f"://{user}:{password}@")

    return change


def server(mongod: str, model: ScriptedModel, **settings: Any) -> Application:
    """An application without AWS, with a database of its own."""
    chosen = Settings(mongodb_uri=mongod, mongodb_database=f"server_{new_id()[:8]}", **settings)
    agent = Agent("helper", "", model="scripted/x")
    return Application(Project(agent=agent, providers={"scripted": model}), Platform(chosen))


def patient(settings: Settings) -> AwsPlatform:
    """AWS, where a secret may be read as often as it is asked for."""
    return AwsPlatform(settings, SecretStore(refresh_interval_seconds=0))


async def test_callers_at_once_share_one_store(application: Application) -> None:
    stores = await asyncio.gather(*(application.store() for _ in range(5)))
    assert len({id(store) for store in stores}) == 1


async def test_an_opening_that_failed_is_tried_again(application: Application) -> None:
    good = application.settings
    application.platform = AwsPlatform(replace(good, mongodb_uri=""))
    with pytest.raises(ConfigurationError, match="MONGODB_URI"):
        await application.store()
    application.platform = AwsPlatform(good)
    assert await (await application.store()).session_keys("nobody") == []


async def test_a_login_that_was_changed_before_the_first_use_is_read_again(
    application: Application, local_aws: Aws, set_password: SetPassword
) -> None:
    arn = local_aws.put_secret("mongo-early", set_password("first"))
    application.platform = patient(replace(application.settings, mongodb_secret_arn=arn))
    await application.platform.secret("mongodb")
    local_aws.put_secret("mongo-early", f'{{"MONGODB_URI": "{set_password("second")}"}}')
    assert await (await application.store()).session_keys("nobody") == []


async def test_after_a_rotation_the_next_request_connects_with_the_new_login(
    application: Application, local_aws: Aws, set_password: SetPassword
) -> None:
    arn = local_aws.put_secret("mongo-late", set_password("first"))
    application.platform = patient(replace(application.settings, mongodb_secret_arn=arn, mongodb_timeout_seconds=5))
    store = await application.store()
    local_aws.put_secret("mongo-late", set_password("second"))
    # More at once than there are connections: new ones have to log in.
    results = await asyncio.gather(*(store.session_keys("nobody") for _ in range(8)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, StorageRejected) and is_refused_login(result)]
    assert refused
    await application.recover(refused[0])
    store = await application.store()
    assert await asyncio.gather(*(store.session_keys("nobody") for _ in range(8))) == [[]] * 8


async def test_a_wrong_login_without_a_new_one_stays_an_error(
    application: Application, local_aws: Aws, set_password: SetPassword
) -> None:
    good = application.settings
    arn = local_aws.put_secret("mongo-wrong", set_password("right").replace(":right@", ":wrong@"))
    application.platform = AwsPlatform(replace(good, mongodb_secret_arn=arn))
    with pytest.raises(ConfigurationError, match="refuses the login"):
        await application.store()
    await application.close()
    application.platform = AwsPlatform(good)


async def test_the_models_key_comes_from_its_secret_at_the_first_call(
    application: Application, local_aws: Aws, model: OfflineModel
) -> None:
    keys = {"OPENAI_API_KEY": "sk-of-openai", "ANTHROPIC_API_KEY": "sk-of-anthropic"}
    arn = local_aws.put_secret("models", json.dumps(keys))
    settings = replace(application.settings, openai_secret_arn=arn, openai_base_url=model.base_url)
    application.platform = AwsPlatform(settings)
    provider = application.providers.get(settings.model)
    request = ModelRequest("", [ChatMessage.user("Trains to Porto")])
    assert (await complete(provider, request, purpose="answer")).text
    assert await application.platform.secret("anthropic") == "sk-of-anthropic", "one secret has both"


async def test_a_missing_key_names_what_to_set(application: Application) -> None:
    with pytest.raises((ConfigurationError, ModelAuthError), match="OPENAI_API_KEY"):
        application.providers.get(application.settings.model)


async def test_names_and_summaries_are_counted_in_the_metrics(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel(default="Hello.", name="Two words", summary="Three words more")
    application.project = Project(
        agent=Agent("helper", "Be helpful.", model="scripted/x"), providers={"scripted": model}
    )
    runner = await application.runner("ada", "metrics")
    for text in ("Hello", "And again"):
        await runner.run(text)
    await runner.name()
    await runner.summarize()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    counted = {name: line[name][0] for line in lines for name in line if name.startswith(("Name", "Summary"))}
    assert counted.keys() == {"NameInputTokens", "NameOutputTokens", "SummaryInputTokens", "SummaryOutputTokens"}
    assert (counted["NameOutputTokens"], counted["SummaryOutputTokens"]) == (2, 3)
    assert min(counted["NameInputTokens"], counted["SummaryInputTokens"]) > 0


async def test_a_model_server_that_fails_is_logged_and_counts_nothing(
    application: Application, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    class Down(ScriptedModel):
        async def shutdown_date(self) -> None:
            raise ModelUnavailable("down")

    application.project = Project(agent=Agent("shop", "", model="scripted/x"), providers={"scripted": Down()})
    assert (await SummaryJobs(application).invoke({"model_ends": True}))["ending"] == []
    assert "model ends not checked" in caplog.text
    assert "ModelsEndingSoon" not in capsys.readouterr().out


async def test_closing_stores_what_was_streamed_before_what_it_needed_is_closed(application: Application) -> None:
    order: list[str] = []
    gate = Gate()

    class Closed(ScriptedModel):
        async def aclose(self) -> None:
            order.append("model closed")

    async def on_finish(context: RunContext, result: RunResult) -> None:
        order.append(f"{result.status}: {result.text}")

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        yield "open"
        order.append("deps closed")

    callbacks = Callbacks(on_finish=on_finish)
    agent = Agent("helper", "Be helpful.", model="scripted/x", callbacks=callbacks, deps=deps)
    providers = {"scripted": lambda model: Closed(["Half an", gate], model=model)}
    application.project = Project(agent=agent, providers=providers)
    stream = await (await application.runner("ada", "closing")).start("Hello")
    await gate.reached()
    await application.close()
    assert order == ["cancelled: Half an", "deps closed", "model closed"]
    assert (await stream.result()).stored


async def test_a_summary_cannot_be_queued_without_a_queue(application: Application, local_aws: Aws) -> None:
    with pytest.raises(NoQueue):
        await application.end_summary("key", rebuild=False, is_done=False)
    url = f"{local_aws.endpoint}/123456789012/missing"
    application.platform = AwsPlatform(replace(application.settings, summary_queue_url=url))
    with pytest.raises(ConfigurationError, match="QueueDoesNotExist"):
        await application.end_summary("key", rebuild=False, is_done=False)


@pytest.mark.parametrize("mistake", ["helper", Project, Agent("helper", "")])
def test_a_project_file_that_defines_something_else_says_what_to_write(mistake: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"project.py must say `project = Project\(agent=…\)`, not "):
        get_application(mistake)
    with pytest.raises(ConfigurationError, match=r"Application\(project\) must be a Project"):
        Application(mistake)


async def test_a_serving_application_finishes_a_dead_turn(mongod: str) -> None:
    application = server(mongod, ScriptedModel(default="Hello again."), lease_seconds=0.2, tick_seconds=0.05)
    async with application.serving():
        session = await application.session("ada", "chat")
        await begin_turn(session, "Hello?")
        async with asyncio.timeout(60):
            while (head := await session.head()) is None or head.turn is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        runner = await application.runner("ada", "chat")
        assert [message.text for message in await runner.history()] == ["Hello?", "Hello again."]


async def test_a_closed_application_counts_again_after_it_is_opened(mongod: str) -> None:
    application = server(mongod, ScriptedModel(default="Hello."), budget_requests_per_minute=1_000)
    for _ in range(2):
        assert (await (await application.runner("ada", "chat")).run("Hello?")).status == "complete"
        await application.close()


async def test_several_agents_are_chosen_and_shown_over_http(mongod: str) -> None:
    models = {name: ScriptedModel(default=f"I am {name}.") for name in ("support", "sales")}
    agents = {
        name: Agent(name, "", model=f"{name}/x", budget=Budget(tokens_per_day=1_000) if name == "sales" else None)
        for name in models
    }
    settings = Settings(mongodb_uri=mongod, mongodb_database=f"agents_{new_id()[:8]}", auth_mode="none")
    application = Application(Project(agents=agents, providers=models), Platform(settings), local=True)
    app = chat_app(application)
    app.mount("/", sessions_app(application))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with application.serving(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.post("/sessions", json={"id": "shop", "agent": "sales"})).json()["agent"] == "sales"
        answers = [
            (await http.post("/chat?stream=false", json={"session_id": session_id, "query": "Who are you?"})).json()
            for session_id in ("shop", "help")
        ]
        assert [answer["text"] for answer in answers] == ["I am sales.", "I am support."]
        listed = (await http.get("/sessions")).json()["sessions"]
        assert [(session["id"], session["agent"]) for session in listed] == [("help", "support"), ("shop", "sales")]
        for session_id, agent in (("shop", "support"), ("new", "secret")):
            refused = await http.post("/chat", json={"session_id": session_id, "query": "Hi.", "agent": agent})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        usage = (await http.get("/usage")).json()
        assert (usage["tokensPerDay"], list(usage["agents"])) == (None, ["sales"])
        assert usage["agents"]["sales"]["tokensPerDay"]["used"] > 0
