"""A typed function is a tool; its body is never run."""

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from world import World

from oncegate_client import AsyncOnce, Once

NOWHERE = Once("http://127.0.0.1:1")


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    street: str
    number: int = 1


class Line(TypedDict):
    sku: str
    note: NotRequired[str]


def test_the_signature_is_the_schema() -> None:
    @NOWHERE.tool
    def order(
        sku: Annotated[str, "The article."],
        quantity: int,
        price: float | None = None,
        *,
        colour: Colour = Colour.RED,
        size: Literal["s", "l"] = "s",
        places: list[Place] | None = None,
        lines: dict[str, Line] | None = None,
        rest: Any = None,
    ) -> dict[str, Any]:
        """Order something."""
        raise NotImplementedError

    assert (order.name, order.description) == ("order", "Order something.")
    place = {
        "type": "object",
        "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["street"],
    }
    line = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "note": {"type": "string"}},
        "additionalProperties": False,
        "required": ["sku"],
    }
    null = {"type": "null"}
    assert order.input_schema == {
        "type": "object",
        "required": ["sku", "quantity"],
        "additionalProperties": False,
        "properties": {
            "sku": {"type": "string", "description": "The article."},
            "quantity": {"type": "integer"},
            "price": {"anyOf": [{"type": "number"}, null]},
            "colour": {"enum": ["red"]},
            "size": {"enum": ["s", "l"]},
            "places": {"anyOf": [{"type": "array", "items": place}, null]},
            "lines": {"anyOf": [{"type": "object", "additionalProperties": line}, null]},
            "rest": {},
        },
    }


def test_a_call_is_sent_and_the_body_is_not_run(world: World) -> None:
    with Once(world.gateway.url) as once:

        @once.tool(name="order")
        def make(place: Place, note: str | None = None) -> dict[str, Any]:
            raise AssertionError("it was run")

        assert make(Place("Main"))["made"] is True
        make(place=Place("Main", 1))
        assert make.call({"place": {"street": "Main", "number": 1}}, key="another").replayed is False
        with pytest.raises(TypeError):
            make()  # type: ignore[call-arg]
    assert world.tool.effects == [
        {"place": {"street": "Main", "number": 1}, "note": None},
        {"place": {"street": "Main", "number": 1}},
    ]


def test_the_same_with_async(world: World) -> None:
    async def main() -> dict[str, Any]:
        async with AsyncOnce(world.gateway.url) as once:

            @once.tool
            async def order(number: int) -> dict[str, Any]:
                raise AssertionError("it was run")

            await order(1)
            return await order(number=1)

    assert asyncio.run(main())["made"] is True
    assert world.tool.effects == [{"number": 1}]


def test_what_has_no_schema_is_refused() -> None:
    def untyped(a):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pass

    def many(*numbers: int) -> None: ...
    def alone(number: int, /) -> None: ...
    def strange(number: complex) -> None: ...
    def odd(number: dict[int, str]) -> None: ...

    for function in (untyped, many, alone, strange, odd):
        with pytest.raises(TypeError, match=function.__name__):
            NOWHERE.tool(function)

    async def later() -> None: ...

    with pytest.raises(TypeError):
        NOWHERE.tool(later)
