"""The sessions function: everything about a chat except the answer."""

from omniagent.aws.services import get_services
from omniagent.http.sessions_app import sessions_app
from omniagent.lambda_runtime.asgi import buffered_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

services = get_services(project)
app = sessions_app(services)
handler = buffered_handler(app)
before_snapshot(services.close)
