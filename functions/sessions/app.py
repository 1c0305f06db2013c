"""The sessions function: everything about a chat except the answer."""

from omniagent.app.on_lambda import get_application
from omniagent.http.sessions_app import sessions_app
from omniagent.lambda_runtime.asgi import buffered_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

application = get_application(project)
app = sessions_app(application)
handler = buffered_handler(app)
before_snapshot(application.close)
