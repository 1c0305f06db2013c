"""Who may call a server of this machine: programs that run here, and the web pages that a server names.

A browser runs pages of any site, and each of them can send requests to this machine. Two headers that no page can
forge give it away: `Host`, when a page's own name points here (DNS rebinding), and `Origin`. A request that a page
makes without an origin, such as one for a picture, carries `Sec-Fetch-Site`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from omniagent.http.loopback import is_loopback, is_loopback_origin

REFUSAL = "Only this machine may call."


@dataclass(frozen=True)
class Callers:
    """Programs of this machine, and some pages.

    `neighbours` are the pages that any server of this machine serves, `origins` those of other sites. `visitors`
    follow a link from another site to a page.
    """

    neighbours: bool = False
    origins: frozenset[str] = frozenset()
    visitors: bool = False

    def include(self, header: Callable[[str], str]) -> bool:
        """Tell whether a request is from one of them, by its headers. A missing one is empty."""
        if not is_loopback(header("host")):
            return False
        if origin := header("origin"):
            return origin in self.origins or (self.neighbours and is_loopback_origin(origin))
        if header("sec-fetch-site") != "cross-site":
            return True
        return self.visitors and (header("sec-fetch-mode"), header("sec-fetch-dest")) == ("navigate", "document")


PROGRAMS = Callers()
