// What the applications with a TypeScript SDK share: they ask, and if that fails, they ask once more.

// Before it asks again: a server that has ended is started again meanwhile.
const PAUSE_MS = 300;

// Does the jobs of the command line. `sdk`: how this SDK makes clients and transports, and calls a tool.
export async function work(sdk) {
  const [place, jobs] = process.argv.slice(2);
  for (const job of JSON.parse(jobs)) {
    const told = [];
    for (let turn = 0; turn < job.turns; turn++) {
      try {
        const result = await ask(sdk, place, job);
        told.push(result.content.map((block) => block.text).join("\n"));
        if (!result.isError) break;
      } catch (error) {
        told.push(String(error));
      }
      await new Promise((asked) => setTimeout(asked, job.pause_s ? job.pause_s * 1000 : PAUSE_MS));
    }
    console.log(JSON.stringify({ order: job.order, told }));
  }
  process.exit(0);
}

async function ask(sdk, place, { order, fault, timeout_s, client_call_id }) {
  const client = sdk.client();
  await client.connect(transportTo(sdk, place));
  try {
    const call = { name: "create_order", arguments: { order, fault } };
    // An application that knows its steps has names for them.
    if (client_call_id) call._meta = { "dev.oncegate/client-call-id": "run-1:step-1" };
    return await sdk.call(client, call, timeout_s ? { timeout: timeout_s * 1000 } : {});
  } finally {
    await client.close();
  }
}

// By its URL, or by its command as JSON.
function transportTo(sdk, place) {
  if (place.startsWith("http")) return sdk.byUrl(new URL(place));
  const [command, ...args] = JSON.parse(place);
  return sdk.byCommand({ command, args });
}
