"""What a program does with clients that openapi-python-client generated. Run in the generator's own environment."""

import sys

from chat_client import Client as ChatClient
from chat_client.api.default import chat
from chat_client.models import ChatAnswer, PlainBody, Problem
from chat_client.models import ShownTextPart as AnswerText
from sessions_client import Client as SessionsClient
from sessions_client.api.default import get_session, list_messages
from sessions_client.models import MessageList, ShownTextPart
from sessions_client.models import Problem as SessionsProblem

url, session_id = sys.argv[1:]
answer = chat.sync(client=ChatClient(url), body=PlainBody(query="[echo:Hello.]", session_id=session_id), stream=False)
assert isinstance(answer, ChatAnswer), answer
part = answer.message.parts[-1]
assert isinstance(part, AnswerText), part
assert part.text == answer.text == "Hello."
empty = chat.sync(client=ChatClient(url), body=PlainBody(query=" ", session_id=session_id), stream=False)
assert isinstance(empty, Problem), empty
assert (empty.status, empty.code) == (422, "invalid_request")

listed = list_messages.sync(session_id, client=SessionsClient(url))
assert isinstance(listed, MessageList), listed
[question, stored] = listed.messages
assert (question.role, stored.id) == ("user", answer.message.id)
assert isinstance(stored.parts[-1], ShownTextPart)
missing = get_session.sync("nobody", client=SessionsClient(url))
assert isinstance(missing, SessionsProblem), missing
assert (missing.status, missing.code) == (404, "not_found")
print("used")
