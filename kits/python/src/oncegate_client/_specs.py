"""What the adapters take: tools of the gateway, and functions with `@once.tool`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ._wire import Tool


class Named(Protocol):
    """A tool that was made of a function."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Spec(NamedTuple):
    """What a framework must know of a tool."""

    name: str
    description: str
    input_schema: dict[str, Any]


def specs(tools: Iterable[Tool | Named]) -> list[Spec]:
    found = []
    for one in tools:
        if isinstance(one, dict):
            found.append(Spec(one["name"], one.get("description") or one["name"], one["input_schema"]))
        else:
            found.append(Spec(one.name, one.description or one.name, one.input_schema))
    return found


def call_id(*parts: object) -> str | None:
    """The framework's id of a tool call, behind what makes it unique: at most 255 bytes, or none."""
    if any(part in (None, "") for part in parts[1:]):
        return None
    text = ":".join(str(part) for part in parts if part not in (None, ""))
    return text if text.isprintable() and len(text.encode()) <= 255 else None
