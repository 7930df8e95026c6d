"""A graph of LangGraph with a checkpointer. `crash`: the process ends after the tool's answer and before the checkpoint, and
another one resumes the thread. `fork`: a thread that is done is begun again from before its tool ran. Otherwise it is forked
when the window of equal arguments is over."""

import asyncio
import json
import os
import sys
import tempfile

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langchain_agent import server_at

THREAD = {"configurable": {"thread_id": "conversation-1"}}


class ScriptedModel(BaseChatModel):
    order: str

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **named):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **named):
        answer = AIMessage("Done.")
        if not isinstance(messages[-1], ToolMessage):
            call = {"name": "create_order", "args": {"order": self.order, "fault": "none"}, "id": "call_1"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def step(place, job, file, does):
    async def call(request, handler):
        thread = request.runtime.config["configurable"]["thread_id"]
        headers = {"x-session": thread}
        if job.get("client_call_id"):
            # The checkpoint keeps both, so a thread that is resumed or forked names the same call.
            headers["x-client-call-id"] = f"{thread}:{request.runtime.tool_call_id}"
        answer = await handler(request.override(headers=headers))
        if does == "crash":
            os._exit(1)
        return answer

    tools = await MultiServerMCPClient({"shop": server_at(place)}, tool_interceptors=[call]).get_tools()
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        graph = create_agent(ScriptedModel(order=job["order"]), tools=tools, checkpointer=saver)
        if does == "resume":
            return await graph.ainvoke(None, THREAD)
        if does == "fork later":
            await asyncio.sleep(LATER_S)
        if does.startswith("fork"):
            before = [state async for state in graph.aget_state_history(THREAD) if state.next == ("tools",)]
            return await graph.ainvoke(None, before[0].config)
        return await graph.ainvoke({"messages": [{"role": "user", "content": "Order it."}]}, THREAD)


def in_a_process(*arguments):
    """In a process of its own, which may end. What the model was told last."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        state = asyncio.run(step(*arguments))
        os.write(write, state["messages"][-2].text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


STEPS = {"crash": ["crash", "resume"], "fork": ["run", "fork"]}
LATER = ["run", "fork later"]
LATER_S = 3

for job in json.loads(sys.argv[2]):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "checkpoints.db")
        told = [in_a_process(sys.argv[1], job, file, does) for does in STEPS.get(job["label"], LATER)]
    print(json.dumps({"order": job["order"], "told": told}), flush=True)
