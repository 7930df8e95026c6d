"""An agent of Haystack with its MCPTool. Its model asks for the order, and again if it was told of none."""

import asyncio
import time

from agent_runs import over, work
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack_integrations.tools.mcp import MCPTool, StreamableHttpServerInfo


@component
class ScriptedModel:
    def __init__(self, job, told):
        self.job, self.told, self.before = job, told, len(told)

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools=None):
        results = messages[-1].tool_call_results
        self.told.extend(str(result.result) for result in results)
        if results:
            time.sleep(self.job.get("pause_s", 0))
        if over(self.job, self.told[self.before :]):
            return {"replies": [ChatMessage.from_assistant("Done.")]}
        call = {"order": self.job["order"], "fault": self.job["fault"]}
        asked = ToolCall(tool_name="create_order", arguments=call, id=f"call_{len(self.told)}")
        return {"replies": [ChatMessage.from_assistant(tool_calls=[asked])]}


def run(place, job, told):
    settings = {"invocation_timeout": job["timeout_s"]} if job["timeout_s"] else {}
    tool = MCPTool("create_order", StreamableHttpServerInfo(url=place), **settings)
    try:
        Agent(chat_generator=ScriptedModel(job, told), tools=[tool]).run([ChatMessage.from_user("Order it.")])
    finally:
        tool.close()


def prepare(place, job):
    told = []

    async def once():
        await asyncio.to_thread(run, place, job, told)

    return told, once


asyncio.run(work(prepare))
