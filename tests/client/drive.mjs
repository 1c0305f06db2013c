// The AI SDK's own client without a browser. Reads one chat a line, {api, id, messages?, actions}, and answers each
// with a line: what a user of `useChat` would see after it, {status, error, messages, data, finishes}.
import { createInterface } from "node:readline";
import { AbstractChat, DefaultChatTransport } from "ai";

class State {
  constructor(messages) {
    this.messages = messages;
    this.status = "ready";
    this.error = undefined;
  }
  pushMessage = (message) => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.messages.map((old, at) => (at === index ? this.snapshot(message) : old));
  };
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    super({ ...options, state: new State(messages) });
  }
}

// A line that goes dead, or a user who does something, as soon as an event of the given type has arrived.
function fetchUntil(eventType, act) {
  return async (url, options) => {
    const response = await fetch(url, options);
    if (!eventType || !response.body) return response;
    let text = "";
    let acted = false;
    const decoder = new TextDecoder();
    const watch = new TransformStream({
      async transform(chunk, controller) {
        controller.enqueue(chunk);
        text += decoder.decode(chunk, { stream: true });
        if (!acted && text.includes(`"type":"${eventType}"`)) {
          acted = true;
          await act(controller);
        }
      },
    });
    return new Response(response.body.pipeThrough(watch), { status: response.status, headers: response.headers });
  };
}

async function drive({ api, id, messages, actions }) {
  const seen = { data: [], finishes: [] };
  let current;
  const transport = new DefaultChatTransport({
    api: `${api}/chat`,
    fetch: (url, options) => current(url, options),
  });
  const chat = new Chat({
    id,
    messages,
    transport,
    onData: (part) => seen.data.push(part),
    onFinish: ({ isAbort, isDisconnect, isError, finishReason }) =>
      seen.finishes.push({ isAbort, isDisconnect, isError, finishReason }),
  });
  const reactions = {
    cut: (controller) => controller.error(new TypeError("network error")),
    stop: () => fetch(`${api}/sessions/${id}/cancel`, { method: "POST" }),
    leave: () => void chat.stop(),
  };
  for (const action of actions) {
    current = fetchUntil(action.when, reactions[action.then]);
    chat.clearError();
    if (action.do === "send")
      await chat.sendMessage({ text: action.text, messageId: action.again }, { body: action.body });
    if (action.do === "resume") await chat.resumeStream();
    if (action.do === "regenerate") await chat.regenerate({ messageId: action.messageId });
  }
  return { status: chat.status, error: chat.error?.message ?? null, messages: chat.messages, ...seen };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { number, ...wanted } = JSON.parse(line);
  drive(wanted)
    .catch((error) => ({ crashed: String(error?.stack ?? error) }))
    .then((result) => console.log(JSON.stringify({ number, ...result })));
}
