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


async def ask(place, job):
    settings = {"read_timeout_seconds": job["timeout_s"], "elicitation_callback": answer}
    async with Client(server_at(place), **settings) as client:
        call = {"order": job["order"], "fault": job["fault"]}
        # An application that knows its steps has names for them.
        meta = {"dev.oncegate/client-call-id": "run-1:step-1"} if job.get("client_call_id") else None
        result = await client.call_tool("create_order", call, meta=meta)
        return result.is_error, "\n".join(block.text for block in result.content)


async def main(place, jobs):
    for job in jobs:
        told = []
        for _ in range(job["turns"]):
            try:
                failed, text = await ask(place, job)
            except Exception as error:
                failed, text = True, repr(error)
            told.append(text)
            if not failed:
                break
        print(json.dumps({"order": job["order"], "told": told}), flush=True)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
