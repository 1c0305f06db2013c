/** A turn of the page as a Python test: the model's steps are a script, the tools are the agent's own. */

import { isTool, textOf, toolName } from "./reducer.js";

/** @import { Message, Part, ToolPart } from "./types.js" */

const HEAD = `"""A turn of the playground as a test: what the model said is a script, everything else is real.

Put it beside your agent's tests: in tests/agent, for \`make test-agent\`, or in a project's tests, for \`omniagent test\`.
"""

import asyncio

from agent import agent
from omniagent import InMemorySessionManager, Runner
from omniagent.testing import ScriptedModel, ToolCall


`;

/**
 * @param {Message} question
 * @param {Message} answer
 * @returns {{ name: string, source: string }}
 */
export function testOf(question, answer) {
  const text = textOf(question);
  const name = `test_${slug(text)}`;
  const steps = stepsOf(answer.parts).filter((parts) => parts.length);
  const source = [
    `async def turn() -> None:`,
    `    model = ScriptedModel(`,
    ...steps.map((parts) => `        ${itemOf(parts)},`),
    `    )`,
    `    runner = Runner(agent, InMemorySessionManager("ada", "test"), provider=model)`,
    `    result = await runner.run(${python(text)})`,
    ...steps.flatMap(repliesOf),
    `    assert result.status == ${python(answer.metadata.status ?? "complete")}`,
    ...callsOf(answer.parts),
    `    assert model.remaining == 0`,
    ``,
    ``,
    `def ${name}() -> None:`,
    `    asyncio.run(turn())`,
    ``,
  ];
  return { name: `${name}.py`, source: HEAD + source.join("\n") };
}

/** What the model said in each of its calls. @param {Part[]} parts */
function stepsOf(parts) {
  /** @type {Part[][]} */
  const steps = [[]];
  for (const part of parts) {
    if (part.type === "step-start") steps.push([]);
    else if (part.type === "text" || isTool(part)) steps.at(-1)?.push(part);
  }
  return steps;
}

/** @param {Part[]} parts */
function itemOf(parts) {
  const beats = parts.map((part) =>
    isTool(part) ? `ToolCall(${python(toolName(part))}, ${python(part.input ?? {})})` : python(/** @type {any} */ (part).text),
  );
  return beats.length === 1 ? beats[0] : `[${beats.join(", ")}]`;
}

/** What people answered after a step. @param {Part[]} parts */
function repliesOf(parts) {
  const asked = parts.filter(isTool).filter((part) => part.approval || toolName(part) === "ask_user");
  if (!asked.length) return [];
  const names = asked.map((_, index) => `request_${index + 1}`);
  return [
    `    [${names.join(", ")}] = result.requests`,
    `    result = await runner.reply(${asked.map((part, index) => replyOf(names[index], part)).join(", ")}).result()`,
  ];
}

/** @param {string} name @param {ToolPart} part */
function replyOf(name, { approval, output, errorText }) {
  if (!approval) return errorText ? `${name}.fail(${python(errorText)})` : `${name}.reply(${python(output)})`;
  return approval.approved ? `${name}.approve()` : `${name}.deny(${approval.reason ? python(approval.reason) : ""})`;
}

/** Which tools ran, and which of them failed: what they return may differ from run to run. @param {Part[]} parts */
function callsOf(parts) {
  const calls = parts.filter(isTool).map((part) => [toolName(part), part.state === "output-available"]);
  if (!calls.length) return [];
  const pairs = calls.map(([name, isGood]) => `(${python(name)}, ${python(isGood)})`).join(", ");
  return [
    `    calls = [(part.name, part.error is None) for part in result.parts if part.type == "tool"]`,
    `    assert calls == [${pairs}]`,
  ];
}

/** @param {unknown} value @returns {string} */
function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value).map(([name, item]) => `${python(name)}: ${python(item)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** @param {string} text */
function slug(text) {
  const words = text.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  return words.slice(0, 6).join("_") || "a_turn";
}
