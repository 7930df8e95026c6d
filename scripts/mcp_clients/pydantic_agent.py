"""An agent of Pydantic AI. Its model asks for the order, and again if it was told of none."""

import asyncio
import json

from agent_runs import over, work
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


async def name_the_call(context, call_tool, name, args):
    conversation = context.deps["conversation"]
    meta = {"dev.oncegate/session": conversation}
    if context.deps["client_call_id"]:
        meta["dev.oncegate/client-call-id"] = f"{conversation}:{context.tool_call_id}"
    return await call_tool(name, args, metadata=meta)


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
        call = {"order": job["order"], "fault": job["fault"]}
        # A model makes a new id for each call.
        return ModelResponse([ToolCallPart("create_order", call, f"call_{len(told)}")])

    timeout = {"read_timeout": job["timeout_s"]} if job["timeout_s"] else {}
    settings = {"tool_error_behavior": "failed", "process_tool_call": name_the_call}
    toolset = MCPToolset(server_at(place), **timeout, **settings)
    agent = Agent(FunctionModel(model), toolsets=[toolset], deps_type=dict)
    deps = {"conversation": "conversation-1", "client_call_id": job.get("client_call_id")}
    await agent.run("Order it.", deps=deps)


def prepare(place, job):
    told = []
    return told, lambda: run(place, job, told)


asyncio.run(work(prepare))
