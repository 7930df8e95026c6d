"""An agent of LlamaIndex with its McpToolSpec. Its model asks for the order, and again if it was told of none."""

import asyncio
import time

from agent_runs import over, work
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


def model_of(job, told):
    before = len(told)

    def answer(messages, **named):
        if messages[-1].role == MessageRole.TOOL:
            told.append(messages[-1].content or "")
            time.sleep(job.get("pause_s", 0))
        if over(job, told[before:]):
            return ChatMessage(role=MessageRole.ASSISTANT, content="Done.")
        call = {"order": job["order"], "fault": job["fault"]}
        asked = ToolCallBlock(tool_call_id=f"call_{len(told)}", tool_name="create_order", tool_kwargs=call)
        return ChatMessage(role=MessageRole.ASSISTANT, blocks=[asked])

    return MockFunctionCallingLLM(response_generator=answer)


async def run(place, job, told):
    settings = {"timeout": job["timeout_s"]} if job["timeout_s"] else {}
    tools = await McpToolSpec(BasicMCPClient(place, **settings)).to_tool_list_async()
    agent = FunctionAgent(tools=tools, llm=model_of(job, told), streaming=False, timeout=None)
    await agent.run("Order it.", max_iterations=job["turns"] + 2)


def prepare(place, job):
    told = []
    return told, lambda: run(place, job, told)


asyncio.run(work(prepare))
