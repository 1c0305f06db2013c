"""An offline model that speaks both OpenAI APIs: for the tests, and for a demo without a key.

`markers` lists what a prompt can ask of it.
"""

from local.model.journal import Journal, Recorded
from local.model.offline import OfflineModel
from local.model.server import build_app

__all__ = ["Journal", "OfflineModel", "Recorded", "build_app"]
