"""An application with the Python SDK: it asks, and if that fails, it asks once more."""

import asyncio
import json
import sys

from mcp import Client


async def ask(url, job):
    async with Client(url, read_timeout_seconds=job["timeout_s"]) as client:
        result = await client.call_tool("create_order", {"order": job["order"], "fault": job["fault"]})
        return result.is_error, "\n".join(block.text for block in result.content)


async def main(url, jobs):
    for job in jobs:
        told = []
        for _ in range(job["turns"]):
            try:
                failed, text = await ask(url, job)
            except Exception as error:
                failed, text = True, repr(error)
            told.append(text)
            if not failed:
                break
        print(json.dumps({"order": job["order"], "told": told}), flush=True)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
