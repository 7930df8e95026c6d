// An application with the TypeScript SDK 2: it asks, and if that fails, it asks once more.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { work } from "./turns.mjs";

await work({
  client: () => new Client({ name: "typescript-sdk-2", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } }),
  byUrl: (url) => new StreamableHTTPClientTransport(url),
  byCommand: (command) => new StdioClientTransport(command),
  call: (client, call, settings) => client.callTool(call, settings),
});
