/** Mastra: `new Agent({ id, name, instructions, model, tools: mastraTools(once, await once.tools()) })`. */

import { createTool, type Tool } from "@mastra/core/tools";
import { callId, type Thread } from "./call-id.js";
import type { Once, ToolSpec } from "./client.js";

type AnyTool = Tool<unknown, unknown>;

/**
 * Tools for an agent, whose calls go through the gateway. The id of a call is the thread of the agent's memory (or
 * `thread`) and the tool call, so that a run that is resumed finds its calls.
 */
export function mastraTools(once: Once, tools: Iterable<ToolSpec>, { thread }: Thread = {}): Record<string, AnyTool> {
  const found: Record<string, AnyTool> = {};
  for (const { name, description, input_schema } of tools) {
    found[name] = createTool({
      id: name,
      description,
      inputSchema: input_schema,
      execute: async (args, context) => {
        const conversation = thread ?? context?.agent?.threadId;
        const clientCallId = callId(conversation, context?.agent?.toolCallId);
        return once.forModel(name, args as object, {
          clientCallId,
          sessionId: conversation,
          signal: context?.abortSignal,
        });
      },
    }) as AnyTool;
  }
  return found;
}
