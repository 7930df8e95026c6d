// An application with the TypeScript SDK 2: it asks, and if that fails, it asks once more.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

// By its URL, or by its command as JSON.
function transportTo(place) {
  if (place.startsWith("http")) return new StreamableHTTPClientTransport(new URL(place));
  const [command, ...args] = JSON.parse(place);
  return new StdioClientTransport({ command, args });
}

async function ask(place, { order, fault, timeout_s }) {
  const client = new Client({ name: "typescript-sdk-2", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(transportTo(place));
  try {
    const call = { name: "create_order", arguments: { order, fault } };
    return await client.callTool(call, { timeout: timeout_s * 1000 });
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
