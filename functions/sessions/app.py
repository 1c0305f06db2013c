"""The sessions function: everything about a chat except the answer."""

from omniagent.aws.services import get_services
from omniagent.http.sessions_app import sessions_app
from omniagent.lambda_runtime.asgi import buffered_handler
from project import project

app = sessions_app(get_services(project))
handler = buffered_handler(app)
