"""Google ADK: `LlmAgent(model=…, name=…, tools=adk_tools(once, await once.tools()))`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ._client import AsyncOnce
from ._specs import Named, Spec, call_id, specs
from ._wire import Tool


class OnceTool(BaseTool):
    """A tool whose calls go through the gateway. The id of a call is session and function call."""

    def __init__(self, once: AsyncOnce, spec: Spec) -> None:
        super().__init__(name=spec.name, description=spec.description)
        self._once, self._spec = once, spec

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._spec.input_schema
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str:
        session = tool_context.session.id
        id_ = call_id(session, tool_context.function_call_id)
        return await self._once.for_model(self.name, args, client_call_id=id_, session_id=session)


def adk_tools(once: AsyncOnce, tools: Iterable[Tool | Named]) -> list[OnceTool]:
    """Tools whose calls go through the gateway. `tools`: of once.tools(), or functions with @once.tool."""
    return [OnceTool(once, one) for one in specs(tools)]
