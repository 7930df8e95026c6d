"""An agent of the OpenAI Agents SDK. Its model asks for the order, and again if it was told of none."""

import asyncio
import json
import logging

from agent_runs import over, work
from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    def __init__(self, job):
        self.job, self.told, self.before = job, [], 0

    async def get_response(self, system_instructions, input, *rest, **named):
        last = input[-1]
        if isinstance(last, dict) and last.get("type") == "function_call_output":
            self.told.append(text_of(last["output"]))
        return ModelResponse(output=[self.next()], usage=Usage(), response_id=None)

    def next(self):
        if over(self.job, self.told[self.before :]):
            text = ResponseOutputText(annotations=[], text="Done.", type="output_text")
            return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        call = {"order": self.job["order"], "fault": self.job["fault"]}
        # A model makes a new id for each call.
        named = {"call_id": f"call_{len(self.told)}", "name": "create_order", "type": "function_call"}
        return ResponseFunctionToolCall(arguments=json.dumps(call), **named)

    def stream_response(self, *rest, **named):
        raise NotImplementedError


def text_of(output):
    return output if isinstance(output, str) else "\n".join(part.get("text", "") for part in output)


def server_at(place, **settings):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        return MCPServerStreamableHttp(params={"url": place}, **settings)
    command, *rest = json.loads(place)
    return MCPServerStdio(params={"command": command, "args": rest}, **settings)


async def run(place, model):
    model.before = len(model.told)

    def meta(call):
        conversation = call.run_context.context["conversation"]
        named = {"dev.oncegate/session": conversation}
        if model.job.get("client_call_id"):
            named["dev.oncegate/client-call-id"] = f"{conversation}:{call.run_context.tool_call_id}"
        return named

    settings = {} if model.job.get("once") else {"max_retry_attempts": 2, "retry_backoff_seconds_base": 0.1}
    if model.job["timeout_s"]:
        settings["client_session_timeout_seconds"] = model.job["timeout_s"]
    server = server_at(place, tool_meta_resolver=meta, **settings)
    async with server:
        agent = Agent(name="clerk", model=model, mcp_servers=[server])
        await Runner.run(agent, "Order it.", context={"conversation": "conversation-1"})


def prepare(place, job):
    model = ScriptedModel(job)
    return model.told, lambda: run(place, model)


logging.disable()
set_tracing_disabled(True)
asyncio.run(work(prepare))
