"""Pydantic AI: `Agent(model, tools=pydantic_tools(once, await once.tools(), thread="conversation-1"))`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import Tool as PydanticTool

from ._client import AsyncOnce
from ._specs import Named, Spec, call_id, specs
from ._wire import Tool


def pydantic_tools(
    once: AsyncOnce, tools: Iterable[Tool | Named], thread: str | None = None
) -> list[PydanticTool[Any]]:
    """Tools for an agent, whose calls go through the gateway.

    `thread` names the conversation; it is not the id of a run, which is new with each run. Together with the tool call
    it is the id of a call, which a run that is resumed finds again. `tools`: of once.tools(), or with @once.tool.
    """
    return [_tool(once, one, thread or once.session_id) for one in specs(tools)]


def _tool(once: AsyncOnce, spec: Spec, thread: str | None) -> PydanticTool[Any]:
    async def run(context: RunContext[Any], /, **args: Any) -> str:
        return await once.for_model(spec.name, args, client_call_id=call_id(thread, context.tool_call_id))

    return PydanticTool.from_schema(run, spec.name, spec.description, spec.input_schema, takes_ctx=True)
