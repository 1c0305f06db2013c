"""What requests to a family of models need, as data.

A model that is not listed is sent only what its caller chose: a compatible server may refuse what it does not know.
"""

import re
from typing import Final


def _family(name: str) -> re.Pattern[str]:
    """Match the names that begin so, also after a vendor's: `openai/gpt-6-luna`."""
    return re.compile(rf"(?:.*[/.:])?{re.escape(name)}")


DEFAULT_EFFORTS: Final = ((_family("gpt-6-luna"), "none"),)
"""The reasoning effort where the caller chose none: by its own default, the model would reason before every answer."""
