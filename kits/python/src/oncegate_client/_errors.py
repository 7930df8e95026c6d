"""Why a call has no result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ._wire import Effect, KeyAction, Mistake


class OnceError(Exception):
    """A call without a result. `effect` says whether the world may have changed."""

    effect: Effect = "unknown"
    key_action: KeyAction = "stop"
    call_id: str | None = None
    retry_after_ms: int | None = None
    #: The key that every try was sent with; None if the arguments make the key.
    key: str | None = None
    #: Whether the kit made that key. Only who has the key can send this call again.
    key_made: bool = False
    client_call_id: str | None = None

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Problem(OnceError):
    """The gateway's own answer (RFC 9457). Members that it does not have are None."""

    def __init__(self, status: int, members: Mapping[str, Any], retry_after_ms: int | None = None) -> None:
        self.members = members
        self.type = _text(members, "type") or "about:blank"
        self.title = _text(members, "title") or ""
        self.status = status
        effect, action = members.get("effect"), members.get("key_action")
        # What an older or a newer gateway does not say in our words proves nothing.
        self.effect = cast(Effect, effect) if effect in ("none", "done", "unknown") else "unknown"
        known = action in ("reuse", "rotate", "wait", "stop")
        self.key_action = cast(KeyAction, action) if known else "stop"
        self.call_id = _text(members, "call_id")
        self.retry_after_ms = retry_after_ms
        self.errors: list[Mistake] = _list(members, "errors")
        self.differs: list[str] = _list(members, "differs")
        self.tool_status: int | None = _number(members, "tool_status")
        self.tool_body: Any = members.get("tool_body")
        self.similar_to = _text(members, "similar_to")
        super().__init__(_text(members, "detail") or self.title or f"the gateway answered {status}")

    @property
    def slug(self) -> str:
        """The last part of `type`, such as `outcome-unknown`."""
        return self.type.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.slug} ({self.status}): {self.detail}"


class UnknownOutcome(OnceError):
    """No answer came within the patience. The call may have been executed.

    To come again, send the same call with `key` (or, if that is None, the same arguments) and `client_call_id`.
    """

    key_action: KeyAction = "reuse"


class NotAGateway(OnceError):
    """What answered at the URL is not oncegate."""


def _text(members: Mapping[str, Any], name: str) -> str | None:
    value = members.get(name)
    return value if isinstance(value, str) else None


def _number(members: Mapping[str, Any], name: str) -> int | None:
    value = members.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(members: Mapping[str, Any], name: str) -> list[Any]:
    value = members.get(name)
    return value if isinstance(value, list) else []
