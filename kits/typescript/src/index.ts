export { BY_ARGUMENTS, type Key } from "./call.js";
export { Once, type Options, type Result, type Settings, type ToolSpec, type TypedTool } from "./client.js";
export { NotAGateway, OnceError, ProblemError, UnknownOutcome } from "./errors.js";
export { outcomeForModel, resultForModel } from "./text.js";
export type { CallRequest, CallResult, Effect, KeyAction, Mistake, Problem, Tool } from "./wire.js";
