/** Under an answer: what the user thinks of it. */

import { askComment } from "./dialogs.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @import { Feedback, Message } from "../types.js" */

/**
 * A thumb that is pressed again takes the feedback back.
 * @param {Message} message
 * @param {(message: Message, feedback: Feedback | null) => Promise<void>} rate
 */
export function thumbs(message, rate) {
  const feedback = message.metadata.feedback ?? null;

  /** @param {"up" | "down"} rating @param {"thumbUp" | "thumbDown"} name @param {string} label */
  function thumb(rating, name, label) {
    const pressed = feedback?.rating === rating;
    const next = pressed ? null : { ...feedback, rating };
    return button(name, label, () => rate(message, next), { "aria-pressed": String(pressed) });
  }

  async function comment() {
    const text = await askComment(feedback?.text ?? "");
    if (text !== null) await rate(message, { ...feedback, text });
  }

  return [
    thumb("up", "thumbUp", "Good answer"),
    thumb("down", "thumbDown", "Bad answer"),
    feedback && button("pencil", feedback.text ? "Change the comment" : "Add a comment", comment),
  ];
}

/** @param {Parameters<typeof icon>[0]} name @param {string} label @param {() => void} click @param {object} [more] */
function button(name, label, click, more = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, click, ...more }, icon(name));
}
