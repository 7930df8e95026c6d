"""An agent of Google's ADK with its McpToolset. Its model asks for the order, and again if it was told of none."""

import asyncio
import json

from agent_runs import over, work
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
from google.genai import types
from mcp import StdioServerParameters


class ScriptedModel(BaseLlm):
    job: dict
    told: list
    before: int = 0

    async def generate_content_async(self, request, stream=False):
        for part in request.contents[-1].parts:
            if part.function_response:
                self.told.append(json.dumps(part.function_response.response, default=str))
        part = types.Part(text="Done.")
        if not over(self.job, self.told[self.before :]):
            call = {"order": self.job["order"], "fault": self.job["fault"]}
            part = types.Part(function_call=types.FunctionCall(name="create_order", args=call))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def server_at(place, timeout_s):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        timeout = {"timeout": timeout_s, "sse_read_timeout": timeout_s} if timeout_s else {}
        return StreamableHTTPConnectionParams(url=place, **timeout)
    command, *rest = json.loads(place)
    return StdioConnectionParams(server_params=StdioServerParameters(command=command, args=rest), timeout=timeout_s)


async def run(place, model):
    model.before = len(model.told)
    toolset = McpToolset(connection_params=server_at(place, model.job["timeout_s"]))
    try:
        agent = LlmAgent(name="clerk", model=model, instruction="Order it.", tools=[toolset])
        runner = InMemoryRunner(agent=agent, app_name="shop")
        session = await runner.session_service.create_session(app_name="shop", user_id="user-1")
        said = types.Content(role="user", parts=[types.Part(text="Order it.")])
        async for _ in runner.run_async(user_id="user-1", session_id=session.id, new_message=said):
            pass
    finally:
        await toolset.close()


def prepare(place, job):
    model = ScriptedModel(model="scripted", job=job, told=[])
    # A model of pydantic copies its lists.
    return model.told, lambda: run(place, model)


asyncio.run(work(prepare))
