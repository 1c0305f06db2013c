"""The chat function: POST /chat streams an answer, GET /chat/{id}/stream resumes a running one."""

from omniagent.app.on_lambda import get_application
from omniagent.http.chat_app import chat_app
from omniagent.lambda_runtime.asgi import StreamingHandler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

application = get_application(project)
app = chat_app(application)
handler = StreamingHandler(app)
before_snapshot(application.close, application.load)
