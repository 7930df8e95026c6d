"""What answers is an older or a newer gateway, or none."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from world import Server

from oncegate_client import NotAGateway, Problem, UnknownOutcome, outcome_for_model

Answer = tuple[int, dict[str, str], bytes]
JSON = {"content-type": "application/json"}
PROBLEM = {"content-type": "application/problem+json"}
DONE = b'{"call_id": "c", "status": "ok", "result": null}'


class Other(Server):
    def __init__(self, says: Callable[[int], Answer | None]) -> None:
        super().__init__()
        self.says, self.count = says, 0
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:  # noqa: ARG002
        self.count += 1
        self.asked.append((headers, json.loads(body) if body else {}))
        return self.says(self.count)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "text/html"}, b"<html>hello</html>"),
        (200, JSON, b'{"ok": true}'),
        (200, JSON, b"[1]"),
        (200, JSON, b"[" * 100_000),
        (200, {}, b"\xff\x00"),
        (204, {}, b""),
        (404, {"content-type": "text/html"}, b"not found"),
        (404, JSON, b'{"detail": "Not Found"}'),
        (400, JSON, b'{"type": "https://example.org/problems/x", "status": 400}'),
        (302, {"location": "http://127.0.0.1:1/"}, b""),
        (401, {}, b""),
    ],
)
def test_what_is_no_gateway_is_one_clear_error(kit: Any, answer: Answer) -> None:
    with Other(lambda _: answer) as other:
        error = kit(other.url).fails("order", {})
        assert isinstance(error, NotAGateway)
        assert f"{other.url} is not an oncegate gateway" in str(error)
        assert error.key, "it may have passed the call on"
        assert error.effect == "unknown"
        assert other.url not in outcome_for_model(error)
        assert "Do not make this call again" in outcome_for_model(error)
        assert other.count == 1


def test_a_list_of_something_else_is_no_list_of_tools(kit: Any) -> None:
    with Other(lambda _: (200, JSON, b'{"tools": [1]}')) as other:
        once = kit(other.url)
        with pytest.raises(NotAGateway):
            once.run(once.once.tools())


def test_an_answer_that_never_ends_is_given_up(kit: Any) -> None:
    class Endless(Other):
        def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
            time.sleep(60)
            return super().answer(path, headers, body)

    with Endless(lambda _: None) as other:
        begun = time.monotonic()
        error = kit(other.url, patience=1).fails("order", {}, key="k")
        assert isinstance(error, UnknownOutcome)
        assert error.key == "k"
        assert time.monotonic() - begun < 15


def test_an_answer_that_trickles_is_given_up(kit: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []

        def trickle() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connections.append(connection)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=trickle, daemon=True).start()
        begun = time.monotonic()
        once = kit(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=0)
        assert isinstance(once.fails("order", {}), UnknownOutcome)
        assert 5 < time.monotonic() - begun < 15
        for connection in connections:
            connection.close()


def test_session_user_and_token_are_sent(kit: Any) -> None:
    with Other(lambda _: (200, JSON, DONE)) as other:
        kit(other.url, token="t-1", session_id="s", user_id="u").call("order", {})
        ((headers, body),) = other.asked
        assert headers["authorization"] == "Bearer t-1"
        assert (body["session_id"], body["user_id"]) == ("s", "u")


def test_the_gateway_is_asked_to_wait_as_long_as_the_caller(kit: Any) -> None:
    with Other(lambda _: (200, JSON, DONE)) as other:
        for patience in (7, 0, 1000):
            kit(other.url, patience=patience).call("order", {})
        assert [headers["prefer"] for headers, _ in other.asked] == ["wait=7", "wait=1", "wait=60"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"compensated": True}, "do not build on it"),
        ({"compensating": True}, "do not build on it"),
        ({"replayed_as_similar": True}, "result of a similar call"),
        ({"similar_to": "c-0"}, "made shortly before: c-0"),
        ({"replayed": True, "age_ms": 1500}, "2 s ago; nothing was executed again"),
    ],
)
def test_a_model_is_told_what_a_stored_result_is_worth(kit: Any, members: dict[str, Any], words: str) -> None:
    body = json.dumps(json.loads(DONE) | members).encode()
    with Other(lambda _: (200, JSON, body)) as other:
        told, result = kit(other.url).for_model("order", {}).split("\n\n")
        assert words in told
        assert result == "null"


def test_members_that_are_not_known_are_ignored(kit: Any) -> None:
    body = {"call_id": "c", "status": "ok", "result": 1, "approved_by": "U1", "replayed": True}
    with Other(lambda _: (200, JSON, json.dumps(body).encode())) as other:
        result = kit(other.url).call("order", {})
        assert (result.result, result.replayed, result.fencing, result.age_ms) == (1, True, None, None)
        assert result.members["approved_by"] == "U1"
        assert json.loads(result.text) == body


def test_an_older_gateway_without_members_proves_nothing(kit: Any) -> None:
    body = {"type": "/problems/outcome-unknown", "status": 409}
    with Other(lambda _: (409, PROBLEM, json.dumps(body).encode())) as other:
        error = kit(other.url).fails("order", {})
        assert isinstance(error, Problem)
        assert (error.effect, error.key_action, error.call_id, error.errors) == ("unknown", "stop", None, [])
        assert other.count == 1


def test_words_of_a_newer_gateway_prove_nothing(kit: Any) -> None:
    body = {"type": "/problems/new", "effect": "half", "key_action": "dance", "detail": 7, "title": "Something new"}
    with Other(lambda _: (409, PROBLEM, json.dumps(body).encode())) as other:
        error = kit(other.url).fails("order", {})
        assert (error.effect, error.key_action, error.detail) == ("unknown", "stop", "Something new")


@pytest.mark.parametrize("action", ["reuse", "wait"])
@pytest.mark.parametrize("header", [False, True])
def test_a_wait_is_obeyed_in_the_member_or_the_header(kit: Any, header: bool, action: str) -> None:
    body: dict[str, Any] = {"type": "/problems/rate-limited", "effect": "unknown", "key_action": action}
    headers = PROBLEM | ({"retry-after": "1"} if header else {})
    if not header:
        body["retry_after_ms"] = 1000
    with Other(lambda n: (429, headers, json.dumps(body).encode()) if n == 1 else (200, JSON, DONE)) as other:
        begun = time.monotonic()
        assert kit(other.url).call("order", {}).tries == 2
        assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("action", ["rotate", "stop"])
def test_what_is_final_is_not_sent_again(kit: Any, action: str) -> None:
    body = {"type": "/problems/x", "effect": "none", "key_action": action, "retry_after_ms": 0}
    with Other(lambda _: (409, PROBLEM, json.dumps(body).encode())) as other:
        kit(other.url).fails("order", {})
        assert other.count == 1


def test_a_call_that_runs_elsewhere_is_asked_for_again(kit: Any) -> None:
    running = b'{"call_id": "c", "status": "running", "idempotency_key": "k"}'
    done = b'{"call_id": "c", "status": "ok", "result": 1}'
    with Other(lambda n: (202, JSON, running) if n == 1 else (200, JSON, done)) as other:
        assert kit(other.url).call("order", {}).result == 1
        other.count = 0
        error = kit(other.url, patience=0).fails("order", {}, key="k")
        assert (error.slug, error.call_id, error.key) == ("call-in-progress", "c", "k")
