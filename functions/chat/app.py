"""The chat function: POST /chat streams an answer, GET /chat/{id}/stream resumes a running one."""

from omniagent.aws.services import get_services
from omniagent.http.chat_app import chat_app
from omniagent.lambda_runtime.asgi import streaming_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

services = get_services(project)
app = chat_app(services)
handler = streaming_handler(app)
before_snapshot(services.close, services.load)
