"""An agent of CrewAI with crewai-tools' MCPServerAdapter. Its model asks for the order, and again if it was told of none."""

import asyncio
import concurrent.futures
import json
import os
import threading

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TRACING_ENABLED="false")

from agent_runs import over, work  # noqa: E402
from crewai import Agent, BaseLLM, Crew, Task  # noqa: E402
from crewai_tools import MCPServerAdapter  # noqa: E402
from mcp import StdioServerParameters  # noqa: E402


class ScriptedModel(BaseLLM):
    """It speaks as CrewAI's agents expect it of a model without tool calls of its own."""

    def __init__(self, job, told):
        super().__init__(model="scripted")
        self._job, self._told, self._before = job, told, len(told)

    def supports_function_calling(self):
        return False

    def call(self, messages, *_, **__):
        # What a tool has answered stands at the end of what the model had said.
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        if said and "\nObservation:" in said[-1]:
            self._told.append(said[-1].rsplit("\nObservation:", 1)[1].strip())
        if over(self._job, self._told[self._before :]):
            return "Thought: I now know the final answer\nFinal Answer: Done."
        call = {"order": self._job["order"], "fault": self._job["fault"]}
        return f"Thought: I order it.\nAction: create_order\nAction Input: {json.dumps(call)}"


def server_at(place):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        return {"url": place, "transport": "streamable-http"}
    command, *rest = json.loads(place)
    return StdioServerParameters(command=command, args=rest, env=dict(os.environ))


def run(place, job, told):
    with MCPServerAdapter(server_at(place), connect_timeout=30) as tools:
        agent = Agent(role="clerk", goal="Order it.", backstory="A clerk.", llm=ScriptedModel(job, told), tools=tools)
        task = Task(description="Order it.", expected_output="Done.", agent=agent)
        Crew(agents=[agent], tasks=[task]).kickoff()


def prepare(place, job):
    told = []

    async def once():
        await asyncio.wait_for(in_a_thread(place, job, told), job["timeout_s"] and job["timeout_s"] + 10)

    return told, once


def in_a_thread(*arguments):
    """In a thread of its own. CrewAI has no timeout: the thread may wait without end for a stream that has ended."""
    ended = concurrent.futures.Future()

    def attempt():
        try:
            run(*arguments)
        except Exception as error:
            if not ended.cancelled():
                ended.set_exception(error)
        else:
            if not ended.cancelled():
                ended.set_result(None)

    threading.Thread(target=attempt, daemon=True).start()
    return asyncio.wrap_future(ended)


async def main():
    await work(prepare)
    # Some threads still wait.
    os._exit(0)


asyncio.run(main())
