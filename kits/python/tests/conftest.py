"""What the tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from world import Both, Gateway, Line, Tool, World


@pytest.fixture
def tool() -> Iterator[Tool]:
    with Tool() as tool:
        yield tool


@pytest.fixture
def world(tool: Tool, tmp_path: Path) -> Iterator[World]:
    with Gateway(tool, tmp_path) as gateway, Line(gateway.port) as line:
        yield World(tool, gateway, line)


@pytest.fixture(params=["sync", "async"])
def kit(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes clients: Once, or AsyncOnce behind the same names."""
    made: list[Both] = []

    def make(url: str, **settings: Any) -> Both:
        made.append(Both(request.param == "async", url, settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
