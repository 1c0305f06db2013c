"""The chat function: POST /chat streams an answer, GET /chat/{id}/stream picks a running one up."""

from omniagent.aws.services import get_services
from omniagent.http.chat_app import chat_app
from omniagent.lambda_runtime.asgi import streaming_handler
from project import project

app = chat_app(get_services(project))
handler = streaming_handler(app)
