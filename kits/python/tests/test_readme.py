"""The README's lines, as printed."""

import re
from pathlib import Path

import pytest
from world import World

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_lines_of_the_readme_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M)
    assert len(blocks) == 2
    lines = "\n".join(blocks).replace("http://127.0.0.1:8080", world.gateway.url)
    for _ in range(2):
        exec(lines, {"__name__": "readme"})
    assert len(world.tool.effects) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == "{'made': True, 'large': 12345678901234567890}"
