"""LangChain and LangGraph: `tools = langchain_tools(once, once.tools())`.

The id of a call is thread and tool call, so that a run that is resumed from its checkpoint finds its calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig, run_in_executor
from langchain_core.tools import BaseTool
from pydantic import ConfigDict

from ._client import AsyncOnce, Once, Options
from ._specs import Named, call_id, specs
from ._wire import Tool


class OnceTool(BaseTool):
    """A tool whose calls go through the gateway."""

    once: Once | AsyncOnce
    model_config = ConfigDict(arbitrary_types_allowed=True)

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # As the model wrote them: a null that LangChain filled in would be another call.
        return (tool_input if isinstance(tool_input, dict) else {}, tool_call_id), {}

    def _run(self, args: dict[str, Any], tool_call: str | None, *, config: RunnableConfig) -> str:
        if not isinstance(self.once, Once):
            raise TypeError("AsyncOnce answers ainvoke only; use Once here")
        return self.once.for_model(self.name, args, **_ids(config, tool_call))

    async def _arun(self, args: dict[str, Any], tool_call: str | None, *, config: RunnableConfig) -> str:
        if isinstance(self.once, AsyncOnce):
            return await self.once.for_model(self.name, args, **_ids(config, tool_call))
        return await run_in_executor(None, self._run, args, tool_call, config=config)


def langchain_tools(once: Once | AsyncOnce, tools: Iterable[Tool | Named]) -> list[OnceTool]:
    """Tools whose calls go through the gateway. `tools`: of once.tools(), or functions with @once.tool."""
    return [
        OnceTool(name=one.name, description=one.description, args_schema=one.input_schema, once=once)
        for one in specs(tools)
    ]


def _ids(config: RunnableConfig, tool_call: str | None) -> Options:
    thread = (config.get("configurable") or {}).get("thread_id")
    ids: Options = {"client_call_id": call_id(thread, tool_call)}
    return ids | {"session_id": str(thread)} if thread else ids
