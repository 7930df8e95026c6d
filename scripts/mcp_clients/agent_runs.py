"""What the agents share: when a model has done its work, and runs that are begun again after an error.

An application or its queue begins a run again, too.
"""

import json
import sys


def over(job, told):
    return len(told) >= job["turns"] or any("order_id" in text for text in told)


async def work(prepare):
    """Does the jobs of the command line.

    `prepare(place, job)` makes the list of what the agent is told, and the function that runs the agent once.
    """
    place, jobs = sys.argv[1], json.loads(sys.argv[2])
    for job in jobs:
        told, run = prepare(place, job)
        for _ in range(job["turns"]):
            try:
                await run()
                break
            except Exception as error:
                told.append(repr(error))
        print(json.dumps({"order": job["order"], "told": told}), flush=True)
