"""OpenAI Agents: `Agent(tools=agents_tools(once, await once.tools(), thread="conversation-1"))`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agents import FunctionTool
from agents.tool_context import ToolContext

from ._client import AsyncOnce
from ._specs import Named, Spec, call_id, specs
from ._wire import Tool


def agents_tools(once: AsyncOnce, tools: Iterable[Tool | Named], thread: str | None = None) -> list[FunctionTool]:
    """Tools for an agent, whose calls go through the gateway.

    `thread` names the conversation. Together with the tool call it is the id of a call, which a run that is resumed
    finds again. `tools`: of once.tools(), or functions with @once.tool.
    """
    return [_tool(once, one, thread or once.session_id) for one in specs(tools)]


def _tool(once: AsyncOnce, spec: Spec, thread: str | None) -> FunctionTool:
    async def invoke(context: ToolContext[Any], text: str) -> str:
        try:
            args = json.loads(text or "{}")
        except ValueError:
            args = None
        if not isinstance(args, dict):
            return "Nothing was executed: the arguments are not a JSON object. Call again with one."
        return await once.for_model(spec.name, args, client_call_id=call_id(thread, context.tool_call_id))

    return FunctionTool(
        name=spec.name,
        description=spec.description,
        params_json_schema=spec.input_schema,
        on_invoke_tool=invoke,
        # The gateway checks the arguments; strict mode would change optional ones into null.
        strict_json_schema=False,
    )
