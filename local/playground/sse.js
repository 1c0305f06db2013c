/** Server-sent events out of a fetch response: one parsed `data:` payload at a time. */

/** The stream ended, or went silent, before its end was announced. */
export class StreamCut extends Error {
  name = "StreamCut";
}

const DONE = "[DONE]";
/** The server sends a comment every 15 seconds. Without it nobody may be there, and resuming costs little. */
const SILENCE_MS = 20_000;

/**
 * Yield the events of a stream until `[DONE]`. Throws `StreamCut` when the connection ends without it.
 * @param {ReadableStream<Uint8Array>} body
 * @param {number} [silenceMs]
 * @returns {AsyncGenerator<import("./types.js").StreamEvent>}
 */
export async function* readEvents(body, silenceMs = SILENCE_MS) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    while (true) {
      const { done, value } = await withinSilence(reader.read(), silenceMs);
      if (done) throw new StreamCut("the stream has no end");
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === DONE) return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Cuts text into events, wherever the network cut it. */
export class SseParser {
  #rest = "";
  /** @type {string[]} */
  #data = [];

  /**
   * Take more text and return the events that are complete now.
   * @param {string} text
   */
  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    const events = [];
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && this.#data.length) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }
}

/**
 * @template T
 * @param {Promise<T>} promise
 * @param {number} milliseconds
 * @returns {Promise<T>}
 */
async function withinSilence(promise, milliseconds) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new StreamCut("the stream went silent")), milliseconds);
  });
  try {
    return /** @type {T} */ (await Promise.race([promise, silence]));
  } finally {
    clearTimeout(timer);
  }
}
