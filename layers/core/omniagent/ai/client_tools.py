"""Tools that only the client can run: the browser, a terminal, the human in front of it.

    @client_tool
    async def locate(accuracy: Literal["low", "high"]) -> Position:
        \"\"\"Find out where the user is.\"\"\"

The body never runs: only the signature is used. A call makes the turn wait; its output is validated on arrival.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, get_type_hints, overload

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from omniagent.ai.tools import FunctionTool
from omniagent.errors import ConfigurationError, InvalidRequest
from omniagent.team_code import team_code
from omniagent.validation import problems_of

MAX_CHOICES = 20


class ClientTool(FunctionTool[..., Any, object], described=False):
    """A tool without code that the client runs: the schemas of its arguments and its output."""

    is_client = True

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None
    ) -> None:
        super().__init__(function, name=name, description=description)
        if self._context_name is not None:
            raise ConfigurationError(f"client tool {self.name}: it runs in the client, where there is no RunContext")
        hints = get_type_hints(function, include_extras=True)
        if "return" not in hints:
            raise ConfigurationError(f"client tool {self.name}: annotate what the client returns: write `-> Model`")
        try:
            self._output: TypeAdapter[Any] = TypeAdapter(hints["return"])
        except PydanticUserError as exc:
            raise ConfigurationError(f"client tool {self.name}: its return annotation makes no schema: {exc}") from exc

    def parse_reply(self, arguments: Any, output: Any) -> Any:  # noqa: ARG002 - a subclass may look at them
        """Validate what the client sent for a call with these arguments. Raises `InvalidRequest`."""
        misfit = f"The output does not fit {self.name}"
        failure = "output of a client tool could not be checked"  # a validator failed, or it is nested too deep
        unchecked = InvalidRequest(f"{misfit}: it could not be checked")
        try:
            with team_code(failure, unchecked, passes=(ValidationError,), tool=self.name):
                checked = self._output.validate_python(output)
                return self._output.dump_python(checked, mode="json")
        except ValidationError as exc:
            raise InvalidRequest(f"{misfit}: {problems_of(exc, whole='JSON')}") from exc


@overload
def client_tool(function: Callable[..., Any], /) -> ClientTool: ...
@overload
def client_tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], ClientTool]: ...
def client_tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> ClientTool | Callable[[Callable[..., Any]], ClientTool]:
    """Declare a tool that only the client runs. Its parameters and return annotation are its schemas."""

    make = partial(ClientTool, name=name, description=description)
    return make if function is None else make(function)


class AskUser(ClientTool, described=False):
    """Asks the user, with choices or without. With choices the answer is one of them."""

    def parse_reply(self, arguments: Any, output: Any) -> Any:
        reply = super().parse_reply(arguments, output)
        choices = arguments.get("choices") if isinstance(arguments, dict) else None
        if choices and reply not in choices:
            raise InvalidRequest(f"The output does not fit {self.name}: choose one of {', '.join(map(str, choices))}")
        return reply


async def _ask_user(
    question: Annotated[str, Field(min_length=1, max_length=2_000, description="The question, as the user reads it.")],
    choices: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(max_length=MAX_CHOICES, description="Answers to choose from. Empty: the user answers freely."),
    ] = [],  # noqa: B006 - a default of the schema, never changed
) -> Annotated[str, Field(min_length=1, max_length=10_000)]:
    """Ask the user a question and wait for the answer. Use it when you cannot go on without it."""
    raise NotImplementedError


ask_user = AskUser(_ask_user, name="ask_user")
