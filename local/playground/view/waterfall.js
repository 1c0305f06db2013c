/** The spans of a turn as a waterfall: when each began, how long it took, what it belongs to. */

import { formatCount, formatDuration, formatJson } from "../format.js";
import { fill, h } from "./dom.js";
import { section } from "./fold.js";
import { icon } from "./icons.js";

/** @import { Span } from "../types.js" */

const KINDS = /** @type {const} */ ({
  LLM: "model",
  TOOL: "tool",
  DB: "database",
  AGENT: "turn",
  CHAIN: "turn",
  REQUEST: "request",
});

/** Of the legend. What can be unfolded comes last. */
const ORDER = ["request", "turn", "model", "tool", "other", "database"];

// Shown as input and output.
const COVERED = /^(input\.|output\.|llm\.output_messages\.)/;

export class Waterfall {
  element = h("section", { class: "waterfall", "aria-label": "Trace of this turn" });
  #load;

  /** @param {() => Promise<Span[]>} load */
  constructor(load) {
    this.#load = load;
    void this.#show();
  }

  async #show() {
    fill(this.element, h("p", { class: "quiet" }, "Reading the trace…"));
    const spans = await this.#load();
    if (spans.length) fill(this.element, legend(spans, () => this.#unfold()), ...halves(spans).flatMap(half));
    else fill(this.element, h("p", { class: "quiet" }, "No trace of this turn was recorded."));
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** Show or hide the calls of the database. */
  #unfold() {
    const isOpen = this.element.classList.toggle("unfolded");
    this.element.querySelector(".legend button")?.setAttribute("aria-expanded", String(isOpen));
  }
}

/** @param {Span[]} spans @param {() => void} unfold */
function legend(spans, unfold) {
  const folded = spans.filter(isFolded).length;
  const kinds = [...new Set(spans.map(kindOf))].sort((one, other) => ORDER.indexOf(one) - ORDER.indexOf(other)).map((kind) => {
    const name = `key kind-${kind}`;
    if (kind !== "database" || !folded) return h("span", { class: name }, kind);
    const calls = `${folded} database ${folded === 1 ? "call" : "calls"}`;
    return h("button", { type: "button", class: name, "aria-expanded": "false", click: unfold }, calls, icon("chevron"));
  });
  return h("div", { class: "legend" }, ...kinds);
}

/** Most of a turn's spans are calls of a database: they are shown on demand, unless they failed. @param {Span} span */
function isFolded(span) {
  return kindOf(span) === "database" && span.status !== "error";
}

/** A turn that waited for somebody has several requests, each with a scale of its own. @param {Span[]} spans */
function halves(spans) {
  const starts = spans.filter(({ kind }) => kind === "REQUEST").map(({ start_ms }) => start_ms);
  const groups = Map.groupBy(spans, (span) => starts.findLastIndex((start) => start <= span.start_ms));
  return [...groups].sort(([one], [other]) => one - other).map(([, group]) => group);
}

/** @param {Span[]} spans @param {number} index @param {Span[][]} all */
function half(spans, index, all) {
  const title = index === 0 ? "Until it waited" : "After the answer to it";
  return [all.length > 1 && h("h3", { class: "half" }, title), table(spans)];
}

/** @param {Span[]} spans */
function table(spans) {
  const start = Math.min(...spans.map((span) => span.start_ms));
  // What runs after the answer, such as finding a name for the chat, does not squeeze it.
  const answer = spans.filter(isOfAnswer);
  const end = Math.max(...(answer.length ? answer : spans).map((span) => span.start_ms + span.duration_ms));
  const rows = inOrder(spans).map(({ span, depth }) => row(span, depth, start, Math.max(end - start, 1)));
  return h("ol", { class: "spans" }, ...rows);
}

/** @param {Span} span @param {number} depth @param {number} start @param {number} whole */
function row(span, depth, start, whole) {
  const bar = h("span", { class: `bar kind-${kindOf(span)}${span.status === "error" ? " failed" : ""}` });
  const from = Math.min(99, (100 * (span.start_ms - start)) / whole);
  bar.style.marginInlineStart = `${from}%`;
  bar.style.width = `${Math.min(100 - from, (100 * span.duration_ms) / whole)}%`;
  const name = h("span", { class: "span-name" }, shortName(span));
  name.style.paddingInlineStart = `${depth * 0.75}rem`;
  const time = h("span", { class: "span-time" }, formatDuration(span.duration_ms));
  const line = h("summary", { title: about(span) }, name, h("span", { class: "track" }, bar), time);
  return h("li", { class: isFolded(span) ? "folded" : "" }, h("details", {}, line, ...details(span)));
}

/** What went into the call, what came out of it, and everything else that is known. @param {Span} span */
function details(span) {
  const { "input.value": input, "output.value": output, ...other } = span.attributes;
  const facts = Object.entries(other)
    .filter(([name]) => !COVERED.test(name))
    .map(([name, value]) => `${name}: ${value}`);
  const error = errorOf(span);
  const events = span.events.map((event) => {
    const values = Object.values(event.attributes).join(" ");
    return `+${formatDuration(event.at_ms - span.start_ms)} ${event.name} ${values}`;
  });
  return [
    input !== undefined && section("Input", pretty(input)),
    output !== undefined && section("Output", pretty(output)),
    error && section("Error", error, "error"),
    section("Attributes", [...facts, ...events].join("\n")),
  ];
}

/** What an exception said, without its traceback: of a tool that crashed, the cause first. @param {Span} span */
export function errorOf({ events, cause }) {
  const exception = events.find(({ name }) => name === "exception")?.attributes;
  if (!exception) return "";
  const said = String(exception["exception.message"] || exception["exception.type"]);
  return cause ? `${cause}\n\nThe model reads: ${said}` : said;
}

/** JSON on several lines; text, and JSON that was cut, as it is. @param {unknown} value */
function pretty(value) {
  try {
    return formatJson(JSON.parse(String(value)));
  } catch {
    return String(value);
  }
}

/** The name without what the colour says already. @param {Span} span */
function shortName({ name, attributes }) {
  return name === "llm" ? modelName(attributes["omniagent.purpose"]) : name.replace(/^(mongodb\.|aws\.dynamodb\.|tool )/, "");
}

/** @param {unknown} purpose */
function modelName(purpose = "answer") {
  return purpose === "answer" ? "model" : `model: ${purpose}`;
}

/** Whether a span is what the answer was waiting for. @param {Span} span */
function isOfAnswer({ kind, attributes }) {
  return kind === "TOOL" || (kind === "LLM" && modelName(attributes["omniagent.purpose"]) === "model");
}

/** @param {Span} span */
function about(span) {
  const { attributes } = span;
  const tokens = attributes["llm.token_count.total"];
  const told = [
    attributes["llm.model_name"],
    tokens && `${formatCount(Number(tokens))} tokens`,
    span.status === "error" && "failed",
  ];
  return [span.name, ...told].filter(Boolean).join(" · ");
}

/** The spans as a tree walked from the top, each level by time. @param {Span[]} spans */
function inOrder(spans) {
  const ids = new Set(spans.map((span) => span.id));
  /** @type {Map<string | null, Span[]>} */
  const children = Map.groupBy(spans, (span) => (span.parent_id && ids.has(span.parent_id) ? span.parent_id : null));
  /** @type {{ span: Span, depth: number }[]} */
  const ordered = [];
  /** @param {string | null} parent @param {number} depth */
  const walk = (parent, depth) => {
    for (const span of (children.get(parent) ?? []).sort((a, b) => a.start_ms - b.start_ms)) {
      ordered.push({ span, depth });
      walk(span.id, depth + 1);
    }
  };
  walk(null, 0);
  return ordered;
}

/** @param {Span} span */
function kindOf(span) {
  return KINDS[/** @type {keyof typeof KINDS} */ (span.kind)] ?? "other";
}
