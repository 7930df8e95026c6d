"""An application with the Python SDK: it asks, and if that fails, it asks once more."""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult


def server_at(place):
    """By its URL, or by its command as JSON."""
    if place.startswith("http"):
        return place
    command, *rest = json.loads(place)
    return StdioServerParameters(command=command, args=rest)


async def answer(context, question):
    return ElicitResult(action="accept", content={"sure": True})


async def ask(place, job, running):
    timeout = {"read_timeout_seconds": job["timeout_s"]} if job["timeout_s"] else {}
    async with Client(server_at(place), elicitation_callback=answer, **timeout) as client:
        if running and "await_call" in [tool.name for tool in (await client.list_tools()).tools]:
            return await client.call_tool("await_call", {"call_id": running})
        call = {"order": job["order"], "fault": job["fault"]}
        # An application that knows its steps has names for them.
        meta = {"dev.oncegate/client-call-id": "run-1:step-1"} if job.get("client_call_id") else None
        return await client.call_tool("create_order", call, meta=meta)


async def main(place, jobs):
    for job in jobs:
        told, running = [], None
        for _ in range(job["turns"]):
            try:
                result = await ask(place, job, running)
                failed, text = result.is_error, "\n".join(block.text for block in result.content)
                if job.get("awaits") and text.startswith("Still running"):
                    running = result.meta["dev.oncegate/call-id"]
            except Exception as error:
                failed, text = True, repr(error)
            told.append(text)
            if not failed:
                break
            await asyncio.sleep(job.get("pause_s", 0))
        print(json.dumps({"order": job["order"], "told": told}), flush=True)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
