/** What a model should see of a call. */

import type { Result } from "./client.js";
import { NotAGateway, type OnceError, ProblemError, UnknownOutcome } from "./errors.js";

/** The gateway takes this argument out of the arguments again. */
const ASKS_FOR_A_KEY =
  "Nothing was executed: this tool takes no call without an idempotency key. Call it again with the same arguments and " +
  "the argument idempotency_key: a new unique text, such as a UUID. Give the same one whenever you repeat that call.";

/** What happened and what to do now, in words for a model: never a status, never "409 Conflict". */
export function outcomeForModel(problem: OnceError): string {
  let told = problem.detail;
  // These details are for programs: they name addresses and keys.
  if (problem instanceof UnknownOutcome) {
    told = "It may have happened: no answer came, and nothing proves whether the call was executed.";
  } else if (problem instanceof NotAGateway) {
    told = "The tool cannot be reached as this program is set up. Nothing proves whether the call was executed.";
  }
  // Its detail names a header, which a model cannot set.
  const asks = problem instanceof ProblemError && problem.slug === "key-missing";
  const parts = asks ? [ASKS_FOR_A_KEY] : [told, advice(problem)];
  if (problem.callId !== null && !problem.detail.includes(problem.callId)) {
    parts.push(`The id of the call is ${problem.callId}.`);
  }
  const said = problem instanceof ProblemError && problem.toolBody !== undefined && problem.toolBody !== null;
  return parts.join(" ") + (said ? `\n\nThe tool said: ${JSON.stringify(problem.toolBody)}` : "");
}

function advice(problem: OnceError): string {
  if (problem.keyAction === "stop") {
    return "Do not make this call again, and do not look for another way to the same effect. Tell the user.";
  }
  if (problem.keyAction === "rotate") {
    return problem.effect === "unknown"
      ? "Do not make this call again before it is known what became of the earlier one. Tell the user."
      : "If you correct the arguments, that is a new call.";
  }
  if (problem.keyMade && problem.effect === "unknown") {
    // Another call would have another key, and be another intent.
    return "Do not make this call again yourself: only the program that has its key can ask safely. Tell the user.";
  }
  const when = problem.retryAfterMs ? ` after ${Math.ceil(problem.retryAfterMs / 1000)} s` : "";
  if (problem.effect === "unknown") {
    return (
      `Making this call again${when} with exactly the same arguments never executes it twice. ` +
      "Never use other arguments or another tool for it."
    );
  }
  return problem.retryAfterMs === null
    ? "Correct what the text above names, if you can; otherwise tell the user."
    : `You may make this call again${when} with exactly the same arguments.`;
}

/** The tool's JSON, and before it what a model must know: that nothing was executed again, or is undone. */
export function resultForModel(answer: Result): string {
  const { members } = answer;
  const told: string[] = [];
  if (answer.replayed && answer.tries === 1) {
    const age = answer.ageMs === null ? "" : `, ${Math.ceil(answer.ageMs / 1000)} s ago`;
    told.push(`Stored result of this same call${age}; nothing was executed again.`);
  }
  if (members.replayed_as_similar === true) told.push("It is the result of a similar call that was made before.");
  if (members.compensated === true || members.compensating === true) {
    told.push("What this call did is undone or being undone: do not build on it.");
  }
  if (typeof members.similar_to === "string") {
    told.push(`A similar call was made shortly before: ${members.similar_to}.`);
  }
  const body = JSON.stringify(answer.result);
  return told.length > 0 ? `${told.join(" ")}\n\n${body}` : body;
}
