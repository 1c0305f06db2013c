/** Beside a message that has other versions: which one this is, and the way to the others. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Message } from "../types.js" */

/** @param {Message} message @param {(nodeId: string) => void} show */
export function versions({ role, metadata: { siblings } }, show) {
  if (!siblings) return null;
  const { index, count, previous, next } = siblings;
  const what = role === "user" ? "question" : "answer";
  return h(
    "span",
    { class: "versions", role: "group", "aria-label": `Versions of this ${what}` },
    step("chevronLeft", `Previous ${what}`, previous),
    h("span", {}, `${index}/${count}`),
    step("chevron", `Next ${what}`, next),
  );

  /** @param {Parameters<typeof icon>[0]} name @param {string} label @param {string | undefined} nodeId */
  function step(name, label, nodeId) {
    const click = () => nodeId && show(nodeId);
    return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, disabled: !nodeId, click }, icon(name));
  }
}
