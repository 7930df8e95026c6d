// An application with the TypeScript SDK 1: it asks, and if that fails, it asks once more.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

// By its URL, or by its command as JSON.
function transportTo(place) {
  if (place.startsWith("http")) return new StreamableHTTPClientTransport(new URL(place));
  const [command, ...args] = JSON.parse(place);
  return new StdioClientTransport({ command, args });
}

async function ask(place, { order, fault, timeout_s }) {
  const client = new Client({ name: "typescript-sdk-1", version: "1.0.0" });
  await client.connect(transportTo(place));
  try {
    const call = { name: "create_order", arguments: { order, fault } };
    return await client.callTool(call, undefined, { timeout: timeout_s * 1000 });
  } finally {
    await client.close();
  }
}

const [place, jobs] = process.argv.slice(2);
for (const job of JSON.parse(jobs)) {
  const told = [];
  for (let turn = 0; turn < job.turns; turn++) {
    try {
      const result = await ask(place, job);
      told.push(result.content.map((block) => block.text).join("\n"));
      if (!result.isError) break;
    } catch (error) {
      told.push(String(error));
    }
  }
  console.log(JSON.stringify({ order: job.order, told }));
}
process.exit(0);
