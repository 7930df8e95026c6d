// An application with the TypeScript SDK 1.0.4, of 2024-11-05, which has no streamable HTTP: it asks, and if that fails, it asks
// once more.
import { Client } from "sdk-1.0.4/client/index.js";
import { StdioClientTransport } from "sdk-1.0.4/client/stdio.js";
import { work } from "./turns.mjs";

await work({
  client: () => new Client({ name: "typescript-sdk-1.0.4", version: "1.0.0" }, { capabilities: {} }),
  byCommand: (command) => new StdioClientTransport(command),
  call: (client, call, settings) => client.callTool(call, undefined, settings),
});
