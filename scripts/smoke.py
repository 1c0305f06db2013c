"""`make smoke`: proves a deployment from outside, as a front end would use it.

    make smoke STAGE=prod                        the stack of a stage, found by its outputs
    make smoke URL=http://127.0.0.1:8000         one address for everything, such as `make run`
    make smoke CHAT_URL=… SESSIONS_URL=…         two addresses
    TOKEN=…                                      a token, where tokens are asked for
    ORIGIN=https://app.example.com               the page whose CORS is checked; else the first of CorsOrigins

It asks the model three times, in a session of its own that it deletes at the end.
"""

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import httpx

from local.places import command
from scripts.caller import Auth, CannotCall, Deployment, Json, events_of, is_here, signed_for
from scripts.stack import Stack

# The text in brackets slows down the offline model of `make run`.
SHORT = "[slow:20] Reply with one short sentence: what can you help with?"
LONG = "[slow:20][long:2000] Count from 1 to 2000, one number per line, without stopping and without any other text."
STRANGER = "https://stranger.example"


class Skipped(Exception):
    """A check does not apply to this deployment. The message says why."""


class Failed(Exception):
    """A check failed. The message says why."""


def expect(ok: object, message: str) -> None:
    if not ok:
        raise Failed(message)


def expect_status(response: httpx.Response, what: str, *statuses: int) -> None:
    """Fail on any other status. Only then is the body read: the caller reads a stream itself."""
    if response.status_code not in statuses:
        response.read()
        raise Failed(f"{what}: {response.status_code} {response.text[:200].strip()}")


class Smoke:
    """The checks, in order. Each is a method that returns its result, or raises `Failed`."""

    def __init__(self, deployment: Deployment, http: httpx.Client, stranger: httpx.Client) -> None:
        """Take a client with credentials, and one without."""
        self._deployment = deployment
        self._http = http
        self._stranger = stranger
        self._session = f"smoke-{uuid.uuid4().hex[:12]}"
        self._answer_id = ""
        self._text = ""

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "refuses strangers": self.refuses_strangers,
            "closed addresses": self.closed_addresses,
            "streams": self.streams,
            "stores": self.stores,
            "retries": self.retries,
            "resumes and stops": self.resumes_and_stops,
            "nothing to resume": self.nothing_to_resume,
            "errors": self.errors,
            "CORS": self.cors,
            "deletes": self.deletes,
        }

    def refuses_strangers(self) -> str:
        if self._deployment.auth == "none":
            raise Skipped("this deployment accepts every caller on this machine")
        for path in ("/chat", "/sessions"):
            response = self._stranger.post(self._deployment.url(path), json={"query": "Hello"})
            expect_status(response, f"POST {path} without credentials", 401, 403)
        return "401 or 403 without credentials"

    def closed_addresses(self) -> str:
        """A closed address refuses a valid caller before a function is invoked."""
        if not self._deployment.closed_urls:
            raise Skipped("this deployment has no address that leads around its front")
        for url in self._deployment.closed_urls:
            # An administrator's signature opens every Function URL of type AWS_IAM.
            signs = self._deployment.auth == "iam" and signed_for(httpx.URL(url).host)[0] == "lambda"
            response = (self._stranger if signs else self._http).get(url.rstrip("/") + "/sessions")
            expect_status(response, f"{url} should be closed", 403)
        return f"403 from {len(self._deployment.closed_urls)} addresses that lead around the front"

    def streams(self) -> str:
        began = time.monotonic()
        body = {"session_id": self._session, "query": SHORT, "message_id": "smoke-1"}
        with self._http.stream("POST", self._deployment.url("/chat"), json=body) as response:
            expect_status(response, "POST /chat", 200)
            version = response.headers.get("x-vercel-ai-ui-message-stream")
            expect(version == "v1", f"x-vercel-ai-ui-message-stream is {version}: a proxy on the way removes headers")
            first, events, pieces = 0.0, [], _Pieces(response)
            for event in events_of(pieces.lines()):
                first = first or time.monotonic() - began
                events.append(event)
        _check_whole(events)
        self._answer_id, self._text = _answer_id(events), _text(events)
        expect(self._text, "the answer has no text")
        status = events[-2]["data"]["status"] if events[-2] else ""
        expect(status == "complete", f"the turn ended {status}: see the chat function's log")
        expect(pieces.count > 1, "the answer came in one piece: a proxy on the way buffers it")
        return (
            f"first event after {first:.1f} s, whole after {time.monotonic() - began:.1f} s, in {pieces.count} pieces"
        )

    def stores(self) -> str:
        response = self._http.get(self._deployment.url(f"/sessions/{self._session}/messages"))
        expect_status(response, "GET messages", 200)
        messages = response.json()["messages"]
        roles = [message["role"] for message in messages]
        expect(roles == ["user", "assistant"], f"the session holds {roles}")
        stored = "".join(part.get("text", "") for part in messages[1]["parts"] if part["type"] == "text")
        expect(stored == self._text, "the stored answer differs from the streamed one")
        return "the stored answer equals the streamed one"

    def retries(self) -> str:
        body = {"session_id": self._session, "query": SHORT, "message_id": "smoke-1"}
        response = self._http.post(self._deployment.url("/chat"), json=body)
        expect_status(response, "POST /chat again", 200)
        events = list(events_of(iter(response.text.splitlines())))
        again = (_answer_id(events), _text(events))
        expect(
            again == (self._answer_id, self._text), "the same message id got another answer: the model was called twice"
        )
        return "the same message id replays the same answer"

    def resumes_and_stops(self) -> str:
        body = {"session_id": self._session, "query": LONG, "message_id": "smoke-2"}
        with self._http.stream("POST", self._deployment.url("/chat"), json=body) as response:
            expect_status(response, "POST /chat", 200)
            seen = _until_text(response)
        resumed_at = self._deployment.url(f"/chat/{self._session}/stream")
        with self._http.stream("GET", resumed_at) as response:
            expect_status(response, "GET /chat/…/stream while an answer runs", 200)
            events: list[Json | None] = []
            stopped_after = 0.0
            for event in events_of(response.iter_lines()):
                events.append(event)
                if event and event["type"] == "text-delta" and not stopped_after:
                    self._stop()
                    stopped_after = time.monotonic()
        took = time.monotonic() - stopped_after
        expect(events[0] == seen[0], "the resumed stream does not begin with the first event of the answer")
        _check_whole(events)
        expect([event for event in events if event and event["type"] == "abort"], "the stopped stream has no `abort`")
        return f"a cut stream goes on from its start; it ended {took:.1f} s after the stop"

    def _stop(self) -> None:
        response = self._http.post(self._deployment.url(f"/sessions/{self._session}/cancel"))
        expect_status(response, "POST cancel while an answer runs", 202)

    def nothing_to_resume(self) -> str:
        response = self._http.get(self._deployment.url(f"/chat/smoke-{uuid.uuid4().hex[:12]}/stream"))
        expect_status(response, "GET /chat/…/stream without an answer", 204)
        expect(not response.content.strip(), "204 has a body")
        return "204"

    def errors(self) -> str:
        broken = {"content": '{"query": ', "headers": {"content-type": "application/json"}}
        for method, path, options, status in (
            ("POST", "/chat", broken, 400),
            ("POST", "/chat", {"json": {"messages": []}}, 422),
            ("GET", f"/sessions/smoke-{uuid.uuid4().hex[:12]}", {}, 404),
            ("POST", f"/sessions/{self._session}/cancel", {}, 409),
        ):
            response = self._http.request(method, self._deployment.url(path), **options)
            expect_status(response, f"{method} {path}", status)
            kind = response.headers.get("content-type", "")
            expect(kind == "application/problem+json", f"{method} {path}: the error is {kind}")
            expect(response.json().get("request_id"), f"{method} {path}: the error has no request id")
        return "400, 422, 404 and 409 are problems with a request id"

    def cors(self) -> str:
        origin = self._deployment.origin
        if not origin:
            raise Skipped("no origin is allowed (CorsOrigins), and none was given (ORIGIN)")
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        for path in ("/chat", "/sessions"):
            url = self._deployment.url(path)
            allowed = self._stranger.options(url, headers={"origin": origin, **asked})
            told = allowed.headers.get("access-control-allow-origin")
            expect_status(allowed, f"preflight of {path} from {origin}", 200, 204)
            expect(told in (origin, "*"), f"a page of {origin} may not call {path}: the preflight allows {told}")
            refused = self._stranger.options(url, headers={"origin": STRANGER, **asked})
            told = refused.headers.get("access-control-allow-origin")
            expect(told is None, f"a page of {STRANGER} may call {path}: CorsOrigins allows {told}")
        response = self._http.get(self._deployment.url("/sessions"), headers={"origin": origin})
        told = response.headers.get("access-control-allow-origin")
        expect(told in (origin, "*"), f"a page of {origin} may not read GET /sessions")
        return f"{origin} may call, {STRANGER} may not"

    def deletes(self) -> str:
        url = self._deployment.url(f"/sessions/{self._session}")
        response = self._http.delete(url)
        expect_status(response, "DELETE session", 202, 204)
        if response.status_code == 204:
            response = self._http.get(url)
            expect_status(response, "GET a deleted session", 404)
        return "the session of this test is gone"


class _Pieces:
    """The lines of a response, and the number of pieces in which they arrived."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.count = 0

    def lines(self) -> Iterator[str]:
        rest = ""
        for piece in self._response.iter_text():
            self.count += 1
            *lines, rest = (rest + piece).split("\n")
            yield from lines


def _until_text(response: httpx.Response) -> list[Json | None]:
    events: list[Json | None] = []
    for event in events_of(response.iter_lines()):
        events.append(event)
        if event and event["type"] == "text-delta":
            return events
    raise Failed("the answer was over before it could be cut: ask a slower model")


def _check_whole(events: list[Json | None]) -> None:
    kinds = [event["type"] if event else "[DONE]" for event in events]
    expect(kinds and kinds[0] == "start", f"the stream begins with {kinds[:1]}, not with `start`")
    expect(kinds[-1] == "[DONE]", f"the stream ends with {kinds[-3:]}, not with `[DONE]`")
    errors = [event["errorText"] for event in events if event and event["type"] == "error"]
    expect(not errors, f"the stream has an error: {errors}. Its cause is in the chat function's log")
    expect(kinds[-3:-1] == ["finish", "data-session"], f"the stream ends with {kinds[-3:]}")


def _answer_id(events: list[Json | None]) -> str:
    return next((event["messageId"] for event in events if event and event["type"] == "start"), "")


def _text(events: list[Json | None]) -> str:
    return "".join(event["delta"] for event in events if event and event["type"] == "text-delta")


def run(deployment: Deployment) -> bool:
    """Run and print every check, and return whether none failed. If the first answer fails, the rest is skipped."""
    failed = []
    with deployment.client() as http, deployment.client(credentials=False) as stranger:
        for name, check in Smoke(deployment, http, stranger).checks().items():
            try:
                print(f"  ok      {name:18} {check()}", flush=True)
            except Skipped as reason:
                print(f"  skipped {name:18} {reason}", flush=True)
            except (Failed, CannotCall, httpx.HTTPError, KeyError, ValueError) as error:
                failed.append(name)
                print(f"  FAILED  {name:18} {error or type(error).__name__}", flush=True)
                if name == "streams":
                    break
    print("The deployment works." if not failed else f"Failed: {', '.join(failed)}.")
    return not failed


def main(arguments: list[str] | None = None) -> int:
    env = os.environ
    parser = argparse.ArgumentParser(
        prog=command("smoke"), description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--stage", default=env.get("STAGE", "dev"))
    parser.add_argument("--url", default=env.get("URL", ""))
    parser.add_argument("--chat-url", default=env.get("CHAT_URL", ""))
    parser.add_argument("--sessions-url", default=env.get("SESSIONS_URL", ""))
    parser.add_argument("--origin", default=env.get("ORIGIN", ""))
    parser.add_argument("--auth", choices=("iam", "jwt", "none"), default=env.get("AUTH") or None)
    given = parser.parse_args(arguments)
    token = env.get("TOKEN", "")
    try:
        deployment = _deployment(given, token)
        print(f"{deployment.chat_url} ({deployment.auth})")
        return 0 if run(deployment) else 1
    except CannotCall as error:
        print(error, file=sys.stderr)
        return 2


def _deployment(given: argparse.Namespace, token: str) -> Deployment:
    chat, sessions = given.chat_url or given.url, given.sessions_url or given.url
    if not chat and not sessions:
        stack = Stack.of_stage(given.stage)
        origin = given.origin or stack.parameters.get("CorsOrigins", "").split(",")[0]
        closed = tuple(stack.outputs.get("ClosedUrls", "").split())
        own: Auth = "jwt" if stack.parameters.get("AuthMode") == "jwt" else "iam"
        return Deployment(stack.output("ChatUrl"), stack.output("SessionsUrl"), own, token, origin, closed)
    if not chat or not sessions:
        raise CannotCall("Give CHAT_URL and SESSIONS_URL, or URL for both.")
    auth: Auth = given.auth or ("jwt" if token else "none" if is_here(httpx.URL(chat).host) else "iam")
    return Deployment(chat, sessions, auth, token, given.origin)


if __name__ == "__main__":
    sys.exit(main())
