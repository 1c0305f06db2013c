"""The permitted callers of a server on this machine: programs that run here, and web pages that the server names.

Any web page in a browser can send requests to this machine. Two headers that no page can forge reveal it: `Host`, if a
page's own name points here (DNS rebinding), and `Origin`. A page's request without an origin, such as for an image,
carries `Sec-Fetch-Site`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from omniagent.tls import is_loopback, is_loopback_origin

REFUSAL = "Only this machine may call."


@dataclass(frozen=True)
class Callers:
    """Programs of this machine, and some pages.

    `neighbours` allows pages of any server on this machine, `origins` those of other sites. `visitors` allows
    navigation by links from other sites.
    """

    neighbours: bool = False
    origins: frozenset[str] = frozenset()
    visitors: bool = False

    def include(self, header: Callable[[str], str]) -> bool:
        """Whether a request is from one of them, by its headers. `header` returns "" for a missing one."""
        if not is_loopback(header("host")):
            return False
        if origin := header("origin"):
            return origin in self.origins or (self.neighbours and is_loopback_origin(origin))
        if header("sec-fetch-site") != "cross-site":
            return True
        return self.visitors and (header("sec-fetch-mode"), header("sec-fetch-dest")) == ("navigate", "document")


PROGRAMS = Callers()
