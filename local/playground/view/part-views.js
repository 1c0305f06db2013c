/** Which card shows which part of an answer. The first that fits is taken: a new kind of card is a file and a line here. */

import { MarkdownView } from "../markdown/view.js";
import { isTool } from "../reducer.js";
import { ApprovalCard, isApproval } from "./approval-card.js";
import { ClientToolCard, isClientTool } from "./client-tool-card.js";
import { QuestionCard, isQuestion } from "./question-card.js";
import { ReasoningView } from "./reasoning.js";
import { SourceView } from "./source.js";
import { ToolCard } from "./tool-card.js";

/** @import { Part } from "../types.js" */
/** @import { TurnActions } from "./turn-footer.js" */

/**
 * @typedef {{ element: HTMLElement, update: (part: any) => void }} PartView
 * @typedef {object} PartKind
 * @property {(part: Part) => boolean} fits A part may change its kind, as a call does when it is approved.
 * @property {(actions: TurnActions) => PartView} make
 */

/** @type {PartKind[]} */
const KINDS = [
  { fits: isApproval, make: (actions) => new ApprovalCard(actions) },
  { fits: isQuestion, make: (actions) => new QuestionCard(actions) },
  { fits: isClientTool, make: (actions) => new ClientToolCard(actions) },
  { fits: isTool, make: () => new ToolCard() },
  { fits: (part) => part.type === "reasoning", make: () => new ReasoningView() },
  { fits: (part) => part.type.startsWith("source-"), make: () => new SourceView() },
  { fits: (part) => part.type === "text", make: () => new TextView() },
];

class TextView {
  #markdown = new MarkdownView();
  element = this.#markdown.element;

  /** @param {{ text: string }} part */
  update(part) {
    this.#markdown.update(part.text);
  }
}

/** The kind of a part; none for one that is not shown. @param {Part} part */
export function kindOf(part) {
  return KINDS.find((kind) => kind.fits(part));
}
