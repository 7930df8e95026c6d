"""An agent of Pydantic AI. Its model asks for the order, and again if it was told of none."""

import asyncio
import json

from agent_runs import over, work
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


async def name_the_session(context, call_tool, name, args):
    return await call_tool(name, args, metadata={"dev.oncegate/session": context.deps["conversation"]})


def server_at(place):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        return place
    command, *rest = json.loads(place)
    return StdioTransport(command, rest, keep_alive=False)


async def run(place, job, told):
    before = len(told)

    def model(messages, info):
        told.extend(part.model_response_str() for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        if over(job, told[before:]):
            return ModelResponse([TextPart("Done.")])
        return ModelResponse([ToolCallPart("create_order", {"order": job["order"], "fault": job["fault"]})])

    toolset = MCPToolset(
        server_at(place),
        read_timeout=job["timeout_s"],
        tool_error_behavior="failed",
        process_tool_call=name_the_session,
    )
    agent = Agent(FunctionModel(model), toolsets=[toolset], deps_type=dict)
    await agent.run("Order it.", deps={"conversation": "conversation-1"})


def prepare(place, job):
    told = []
    return told, lambda: run(place, job, told)


asyncio.run(work(prepare))
