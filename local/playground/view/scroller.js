/** Keeps the end of a growing page in sight, unless the reader has scrolled away from it. */

const NEAR_PX = 80;

export class Scroller {
  #area;
  #button;
  #pinned = true;
  #top = 0;

  /**
   * @param {HTMLElement} area
   * @param {HTMLElement} button Shown while the end is out of sight.
   */
  constructor(area, button) {
    this.#area = area;
    this.#button = button;
    area.addEventListener("scroll", () => this.#look(), { passive: true });
    // Folds open, the field grows, a phone is turned: the end moves without a message.
    const observer = new ResizeObserver(() => this.#follow());
    for (const element of [area, ...area.children]) observer.observe(element);
    button.addEventListener("click", () => this.pin());
  }

  /** Go to the end and stay there. */
  pin() {
    this.#pinned = true;
    this.#follow();
  }

  /**
   * Change the page and stay at the end, or where the reader is: what is added above pushes nothing away.
   * @param {() => void} change
   */
  keep(change) {
    const fromEnd = this.#area.scrollHeight - this.#area.scrollTop;
    const nearTop = this.#area.scrollTop < NEAR_PX;
    change();
    if (!this.#pinned && nearTop) this.#area.scrollTop = this.#area.scrollHeight - fromEnd;
    this.#follow();
  }

  #follow() {
    if (this.#pinned) this.#area.scrollTop = this.#area.scrollHeight;
    this.#look();
  }

  /** Only who scrolls up leaves the end. It also moves away by itself, when the area gets smaller. */
  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.#area;
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.#pinned = true;
    else if (scrollTop < this.#top) this.#pinned = false;
    this.#top = scrollTop;
    this.#button.hidden = this.#pinned;
  }
}
