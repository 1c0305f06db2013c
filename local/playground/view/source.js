/** A page or a document that the answer cites. */

import { safeUrl } from "../markdown/urls.js";
import { fill, h } from "./dom.js";

/** @import { SourcePart } from "../types.js" */

export class SourceView {
  element = h("p", { class: "source" });

  /** @param {SourcePart} part */
  update(part) {
    const href = safeUrl(part.url ?? "");
    const title = part.title || part.url || "";
    fill(this.element, "Source: ", href ? h("a", { href, target: "_blank", rel: "noreferrer" }, title) : title);
  }
}
