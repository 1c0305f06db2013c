"""Routes by which the page changes the stack itself."""

import httpx

from local.front import Front, LocalRequest
from local.traces import Traces


async def break_something(request: LocalRequest) -> dict[str, str]:
    if request.body != {"what": "all"}:
        raise ValueError("Name what to break.")
    return {"broken by": request.user}


async def test_only_the_page_itself_or_a_program_changes_the_stack() -> None:
    front = Front(Traces())
    await front.start(0)
    front.open_to({}, {"POST /local/break": break_something})
    own, other = {"origin": front.url, "x-user-id": "ada"}, {"origin": "http://127.0.0.1:3000"}
    async with httpx.AsyncClient(base_url=front.url, timeout=60, trust_env=False) as http:
        broken = await http.post("/local/break", json={"what": "all"}, headers=own)
        assert (broken.status_code, broken.json()) == (200, {"broken by": "local:ada"})
        assert (await http.post("/local/break", json={"what": "all"})).status_code == 200
        assert (await http.post("/local/break", json={"what": "all"}, headers=other)).status_code == 403
        refused = await http.post("/local/break", json={})
        assert (refused.status_code, refused.json()["detail"]) == (422, "Name what to break.")
    await front.close()
