"""What the users of the soak say, and what must come of it."""

import json
import random
from dataclasses import dataclass

KINDS = {
    "plain": 4,
    "tool": 4,
    "long": 4,
    "regenerate": 2,
    "summary": 1,
    "queue": 2,
    "steer": 2,
    "interrupt": 2,
    "background": 3,
    "approve": 2,
    "deny": 1,
    "unanswered": 1,
    "edit": 3,
    "send after": 2,
    "regenerate older": 3,
}
"""What a user does, and how often."""
WORDS = ("all", "is", "well", "that", "ends")
LONG_WORDS = 100


@dataclass(frozen=True)
class Prompt:
    """What is sent, and what must come of it."""

    text: str
    says: str
    steps: int = 1
    charges: int = 0

    @classmethod
    def make(cls, kind: str, message_id: str, chance: random.Random) -> "Prompt":
        """Make a prompt whose answer is known. The message id in it tells the model's requests apart."""
        if kind == "long":
            words = " ".join(chance.choice(WORDS) for _ in range(LONG_WORDS))
            says = f"{message_id} {words}"
            return cls(f"[slow:20][echo:{says}]", says)
        says, order = f"{message_id} said.", json.dumps({"order": message_id})
        if kind == "tool":
            beside = chance.choice(["", '[tool:pause {"seconds": 0.3}]', "[tool:blink]"])
            return cls(f"[slow:10][tool:charge {order}]{beside}[then][slow:20][echo:{says}]", says, steps=2, charges=1)
        if kind in {"approve", "deny", "unanswered"}:
            charges = 1 if kind == "approve" else 0
            return cls(f"[slow:10][tool:transfer {order}][then][slow:20][echo:{says}]", says, steps=2, charges=charges)
        reasons = chance.choice(["", "[reason]"])
        return cls(f"{reasons}[slow:10][echo:{says}]", says)
