"""An agent of LangChain with langchain-mcp-adapters. Its model asks for the order, and again if it was told of none."""

import asyncio
import json
from datetime import timedelta

from agent_runs import over, work
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient


class ScriptedModel(BaseChatModel):
    job: dict
    told: list
    before: int = 0

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **named):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **named):
        if isinstance(messages[-1], ToolMessage):
            self.told.append(messages[-1].text)
        answer = AIMessage("Done.")
        if not over(self.job, self.told[self.before :]):
            call = {"order": self.job["order"], "fault": self.job["fault"]}
            # A model makes a new id for each call.
            answer = AIMessage("", tool_calls=[{"name": "create_order", "args": call, "id": f"call_{len(self.told)}"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def name_the_session(request, handler):
    thread = request.runtime.config["configurable"]["thread_id"]
    return await handler(request.override(headers={"x-session": thread}))


def server_at(place):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        return {"transport": "http", "url": place}
    command, *rest = json.loads(place)
    return {"transport": "stdio", "command": command, "args": rest}


async def run(place, model):
    model.before = len(model.told)
    # Without it a stream that ends without an answer is waited for without end.
    timeout_s = model.job["timeout_s"]
    timeout = {"read_timeout_seconds": timedelta(seconds=timeout_s)} if timeout_s else {}
    shop = server_at(place) | {"session_kwargs": timeout}
    tools = await MultiServerMCPClient({"shop": shop}, tool_interceptors=[name_the_session]).get_tools()
    middleware = [] if model.job.get("once") else [ToolRetryMiddleware(initial_delay=0.1)]
    agent = create_agent(model, tools=tools, middleware=middleware)
    thread = {"configurable": {"thread_id": "conversation-1"}}
    await agent.ainvoke({"messages": [{"role": "user", "content": "Order it."}]}, thread)


def prepare(place, job):
    model = ScriptedModel(job=job, told=[])
    return model.told, lambda: run(place, model)


if __name__ == "__main__":
    asyncio.run(work(prepare))
