"""The kit's types are those of /openapi.json."""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from world import World

from oncegate_client import Options, _wire

TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}


def members(schema: dict[str, Any], schemas: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Properties and required members, those of `allOf` together."""
    if "$ref" in schema:
        return members(schemas[schema["$ref"].rsplit("/", 1)[-1]], schemas)
    properties, required = dict(schema.get("properties", {})), set(schema.get("required", []))
    for part in schema.get("allOf", []):
        more, needed = members(part, schemas)
        properties |= more
        required |= needed
    return properties, required


def fits(hint: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    origin = get_origin(hint)
    if "$ref" in schema:
        there = schemas[schema["$ref"].rsplit("/", 1)[-1]]
        return bool(get_type_hints(hint).keys() == there["properties"].keys())
    if "type" not in schema:
        return hint is Any
    if origin is Literal:
        return schema["pattern"] in (f"^({'|'.join(get_args(hint))})$", f"^{'|'.join(get_args(hint))}$")
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    parts = get_args(hint) if origin in (Union, types.UnionType) else [hint]
    if {TYPES[name] for name in names} != {get_origin(part) or part for part in parts}:
        return False
    if origin is list:
        return fits(get_args(hint)[0], schema["items"], schemas)
    if origin is dict and "additionalProperties" in schema:
        return fits(get_args(hint)[1], schema["additionalProperties"], schemas)
    return True


@pytest.mark.parametrize("name", ["CallRequest", "CallResult", "Problem", "Mistake", "Tool"])
def test_a_type_has_the_members_of_its_schema(world: World, name: str) -> None:
    schemas = world.gateway.ask("/openapi.json")["components"]["schemas"]
    mine: Any = getattr(_wire, name)
    properties, required = members(schemas[name], schemas)
    hints = get_type_hints(mine)
    assert hints.keys() == properties.keys()
    assert mine.__required_keys__ == required
    for member, schema in properties.items():
        assert fits(hints[member], schema, schemas), f"{name}.{member}: {hints[member]} and {schema}"


def test_every_member_of_a_request_can_be_set() -> None:
    assert {"args", "idempotency_key", *Options.__annotations__} - {"patience"} == set(
        get_type_hints(_wire.CallRequest)
    )
