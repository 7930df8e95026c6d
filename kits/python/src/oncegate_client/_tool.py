"""`@once.tool`: a typed function is the signature of a tool. Its body is never run."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema = dict[str, Any]
SIMPLE: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Signature:
    """What is known of a function without running it: name, description, JSON Schema of its arguments."""

    def __init__(self, function: Callable[..., Any], name: str | None) -> None:
        self.name = name or function.__name__
        self.description = inspect.getdoc(function) or ""
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        properties: dict[str, Schema] = {}
        required = []
        for one in self._signature.parameters.values():
            if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                raise TypeError(f"{self.name}: an argument of a tool has a name, and {one} has none")
            if one.name not in hints:
                raise TypeError(f"{self.name}: the argument {one.name} has no type")
            properties[one.name] = _schema(hints[one.name], f"{self.name}: {one.name}")
            if one.default is one.empty:
                required.append(one.name)
        self.input_schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            self.input_schema["required"] = required

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, with the defaults, so that equal calls are equal."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: _json(value) for name, value in bound.arguments.items()}


def _schema(hint: Any, where: str) -> Schema:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin in (Required, NotRequired):
        return _schema(inner[0], where)
    if isinstance(hint, type) and hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    if origin is Annotated:
        words = [note for note in inner[1:] if isinstance(note, str)]
        return _schema(inner[0], where) | ({"description": " ".join(words)} if words else {})
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, where) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", "items": _schema(inner[0], where) if inner else {}}
    if hint is dict or origin in (dict, Mapping):
        if inner and inner[0] is not str:
            raise TypeError(f"{where}: names in JSON are texts, and not {inner[0]}")
        return {"type": "object", "additionalProperties": _schema(inner[1], where) if inner else True}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [one.value for one in hint]}
    if is_typeddict(hint):
        # Its own list is wrong where annotations are texts.
        hints = get_type_hints(hint, include_extras=True)
        needed = [
            name
            for name, one in hints.items()
            if get_origin(one) is Required or (get_origin(one) is not NotRequired and name in hint.__required_keys__)
        ]
        return _members(hints, needed, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        none = dataclasses.MISSING
        fields = dataclasses.fields(hint)
        needed = [one.name for one in fields if one.default is none and one.default_factory is none]
        return _members(get_type_hints(hint, include_extras=True), needed, where)
    raise TypeError(f"{where}: there is no JSON Schema for {hint!r}")


def _members(hints: Mapping[str, Any], required: list[str], where: str) -> Schema:
    properties = {name: _schema(hint, f"{where}.{name}") for name, hint in hints.items()}
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _json(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return value
