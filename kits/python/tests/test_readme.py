"""The lines of README and docs/mcp.md, as printed."""

import re
from pathlib import Path
from typing import Any

import pytest
from world import World

README = Path(__file__).resolve().parents[1] / "README.md"
MCP = Path(__file__).resolve().parents[3] / "docs" / "mcp.md"


def test_the_lines_of_the_readme_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M)
    assert len(blocks) == 2
    lines = "\n".join(blocks).replace("http://127.0.0.1:8080", world.gateway.url)
    for _ in range(2):
        exec(lines, {"__name__": "readme"})
    assert len(world.tool.effects) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == "{'made': True, 'large': 12345678901234567890}"


def test_the_lines_of_the_page_about_mcp_run(world: World) -> None:
    lines: str = re.findall(r"^```python\n(from oncegate_client.*?)^```", MCP.read_text(), re.S | re.M)[0]
    names: dict[str, Any] = {"__name__": "page"}
    exec(lines.replace("http://127.0.0.1:8080", world.gateway.url), names)
    for number in range(2):
        assert '"made": true' in names["call_tool"]("create_order", {"business_id": "B-1"}, f"call_{number}")
    assert len(world.tool.effects) == 1
