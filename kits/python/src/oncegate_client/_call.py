"""A call without its network: what is sent, what an answer means, and when to send the same bytes again."""

from __future__ import annotations

import json
import math
import random
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

from ._errors import NotAGateway, OnceError, Problem, UnknownOutcome
from ._wire import CallRequest

#: How long a request may take beyond the time that the gateway is asked to wait.
GRACE_S = 5.0
#: The longest wait that the gateway takes.
LONGEST_WAIT_S = 60
#: Waits after lost answers: the first one, and the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
#: So that a gateway which names no time is not asked in a loop.
SHORTEST_PAUSE_S = 0.05
#: Statuses of something between kit and gateway that may pass, and say nothing of the call.
PASSING = {408, 425, 429, 500, 502, 503, 504}
#: Problems of requests that the gateway did not look at: they say nothing of an earlier try.
UNREAD = {400, 401, 403, 404, 405, 408, 413}


E = TypeVar("E", bound=OnceError)


class NotJson(ValueError):
    """Arguments that cannot be sent."""


class _Keys(Enum):
    BY_ARGUMENTS = "by arguments"


#: No key is sent: the gateway makes it from the arguments. For calls that a model makes.
BY_ARGUMENTS: Final = _Keys.BY_ARGUMENTS
Key = str | _Keys | None


@dataclass(frozen=True)
class Result:
    """A call that was executed, now or before. `result` is the tool's JSON."""

    result: Any
    call_id: str
    #: Whether this is the stored result of an earlier request.
    replayed: bool
    #: The call's key at the gateway. Made of business fields, it is not the one that was sent.
    key: str | None
    #: Milliseconds since the call was first requested; of a replay only.
    age_ms: int | None
    fencing: int | None
    #: How many requests the kit sent.
    tries: int
    #: All members of the answer, and its text as it came.
    members: Mapping[str, Any] = field(repr=False)
    text: str = field(repr=False)


class Tries:
    """The tries of one request: the same bytes each time, until an answer is final or the patience is over."""

    def __init__(
        self, where: str, patience: float, key: str | None, key_made: bool, client_call_id: str | None
    ) -> None:
        if not 0 <= patience < math.inf:
            raise ValueError("patience is a number of seconds, 0 or more")
        self._where, self._ends = where, time.monotonic() + patience
        self.key, self._key_made, self._client_call_id = key, key_made, client_call_id
        self.count = 0
        self._lost = 0

    def begin(self) -> tuple[dict[str, str], float]:
        """The headers and the timeout of the next try."""
        self.count += 1
        # At least one, or the answer to a call that has just begun is that it runs.
        wait = min(max(1, math.ceil(self._left())), LONGEST_WAIT_S)
        return {"prefer": f"wait={wait}"}, wait + GRACE_S

    def lost(self, why: str, cause: Exception | None = None, after: float | None = None) -> float:
        """No answer, or none of a gateway's. Returns how long to wait before the next try."""
        self._lost += 1
        # An exponent of any size would overflow.
        longest = min(FIRST_PAUSE_S * 2.0 ** min(self._lost, 10), LONGEST_PAUSE_S)
        pause = longest * random.uniform(0.5, 1)
        pause = max(pause, after or 0.0)
        if pause > self._left():
            how = f"with key {self.key!r}" if self.key else "with the same arguments"
            raise self._about(
                UnknownOutcome(
                    f"The call may or may not have been executed: no answer from {self._where} after {self.count} "
                    f"tries ({why}). Sending the same call again {how} never executes it twice."
                )
            ) from cause
        return pause

    def answered(self, status: int, headers: Mapping[str, str], text: str) -> dict[str, Any] | float:
        """The members of a success, or how long to wait before the next try. Raises what is final."""
        members = _object(text)
        kind = members.get("type") if members else None
        if members is not None and status >= 400 and isinstance(kind, str) and kind.startswith("/problems/"):
            return self._refused(Problem(status, members, _wait_ms(members, headers)))
        if members is not None and status == 202 and members.get("status") == "running":
            if self._left() <= 1:
                body = {"type": "/problems/call-in-progress", "title": "The call is still running", **members}
                raise self._about(Problem(409, {**body, "effect": "unknown", "key_action": "reuse"}, 1000))
            return 1.0
        if members is not None and status == 200:
            return members
        if status in PASSING:
            after = _retry_after_s(headers)
            return self.lost(f"the last answer was {status}, and not oncegate's", after=after)
        raise self.is_no_gateway(f"{status} {headers.get('content-type') or 'without a content type'}")

    def is_no_gateway(self, what: str) -> NotAGateway:
        """The one error for whatever else answers."""
        return self._about(NotAGateway(f"{self._where} is not an oncegate gateway: it answered {what}. Check the URL."))

    def _refused(self, problem: Problem) -> float:
        after = problem.retry_after_ms
        if problem.key_action in ("reuse", "wait") and after is not None:
            pause = max(after / 1000, SHORTEST_PAUSE_S) * random.uniform(1, 1.1)
            if pause <= self._left():
                return pause
        if self._lost and problem.effect == "none" and problem.status in UNREAD:
            raise self._about(
                UnknownOutcome(
                    "The call may or may not have been executed: the answer to an earlier try was lost, and the "
                    f"gateway did not look at the last one. {problem.detail}"
                )
            ) from problem
        raise self._about(problem)

    def _about(self, error: E) -> E:
        error.key, error.key_made, error.client_call_id = self.key, self._key_made, self._client_call_id
        return error

    def _left(self) -> float:
        return max(0.0, self._ends - time.monotonic())


@dataclass
class Call:
    """A request for a call, made once before the first try."""

    path: str
    body: bytes
    tries: Tries

    @classmethod
    def new(
        cls, url: str, tool: str, args: Mapping[str, Any], key: Key, patience: float, ids: Mapping[str, Any]
    ) -> Call:
        """Raises ValueError for what cannot be sent; nothing has been sent then."""
        if not isinstance(tool, str) or not tool:
            raise ValueError("a tool has a name")
        made = key is None
        sent = str(uuid.uuid4()) if key is None else None if isinstance(key, _Keys) else key
        if sent is not None and not re.fullmatch(r"[!-~]{1,255}", sent):
            raise ValueError("a key is 1 to 255 visible ASCII characters without spaces")
        named = dict(ids)
        if isinstance(key, _Keys) and not named.get("client_call_id"):
            # A key made of arguments is forgotten after a while; this finds the call as long as it is stored.
            named["client_call_id"] = str(uuid.uuid4())
        request: dict[str, Any] = {"args": dict(args), "idempotency_key": sent, **named}
        request = {name: value for name, value in request.items() if value is not None}
        try:
            body = json.dumps(cast(CallRequest, request), allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise NotJson(f"the arguments are not JSON: {error}") from error
        path = f"{url}/v1/tools/{quote(tool, safe='')}/calls"
        return cls(path, body, Tries(url, patience, sent, made, named.get("client_call_id")))

    def result(self, members: dict[str, Any], text: str) -> Result:
        """Reads a success; what is not known is left in `members`."""
        if "result" not in members or not isinstance(members.get("call_id"), str):
            raise self.tries.is_no_gateway("200 without `call_id` and `result`")
        return Result(
            result=members["result"],
            call_id=members["call_id"],
            replayed=members.get("replayed") is True,
            key=members.get("idempotency_key"),
            age_ms=members.get("age_ms"),
            fencing=members.get("fencing"),
            tries=self.tries.count,
            members=members,
            text=text,
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _wait_ms(members: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
    """The member, and the header only where an older gateway has no such member."""
    if "retry_after_ms" not in members:
        after = _retry_after_s(headers)
        return None if after is None else math.ceil(after * 1000)
    value = members["retry_after_ms"]
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
