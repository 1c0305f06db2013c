"""A project for tests that opens every connection before the snapshot, and a tool that draws all kinds of numbers."""

import random
import secrets
import ssl
import uuid

from bson import ObjectId

from omniagent import Agent, Project, tool
from omniagent.app.on_lambda import get_application
from omniagent.lambda_runtime import event_loop


@tool
def draw() -> dict[str, str]:
    """Draw what must be different in every process."""
    return {
        "random": str(random.getrandbits(128)),
        "object_id": str(ObjectId())[8:18],  # without the time and the counter
        "uuid": uuid.uuid4().hex,
        "secret": secrets.token_hex(16),
        "openssl": ssl.RAND_bytes(16).hex(),
    }


project = Project(agent=Agent("helper", "Be helpful.", tools=[draw]))


async def prime() -> None:
    application = get_application(project)
    await application.store()
    await application.registry.signals("nobody:nothing", "none")


event_loop.run(prime())
