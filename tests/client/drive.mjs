// The AI SDK's own clients without a browser. Reads one chat a line, {api, id, sdk, answers, messages?, actions},
// and answers each with a line: what a user of `useChat` would see after it, {status, error, messages, data, finishes, bodies}.
import { createInterface } from "node:readline";

console.error = console.warn = () => {}; // WorkflowChatTransport reports each cut stream

const packages = { 5: "ai-v5", 6: "ai", 7: "ai-v7" };

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

// A line that goes dead, or a user who does something, as soon as an event of the given type has arrived.
function fetchUntil(eventType, act) {
  let acted = false;
  return async (url, options) => {
    const response = await fetch(url, options);
    if (!eventType || !response.body) return response;
    let text = "";
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

// Whichever of the SDK's own helpers says that everything is answered.
function whenAnswered(sdk) {
  const helpers = [
    sdk.lastAssistantMessageIsCompleteWithApprovalResponses,
    sdk.lastAssistantMessageIsCompleteWithToolCalls,
  ].filter(Boolean); // version 5 knows no approvals
  return (options) => helpers.some((isComplete) => isComplete(options));
}

async function post(url, body) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(text);
}

// WorkflowChatTransport names neither the chat nor a content type. `unmodified` leaves it so.
async function workflowTransport(options, { unmodified, startIndex }) {
  const { WorkflowChatTransport } = await import("@ai-sdk/workflow/client");
  const { headers, ...rest } = options;
  const named = {
    prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
      headers,
      body: { id, messages: messages.slice(-2), trigger, messageId },
    }),
    prepareReconnectToStreamRequest: ({ api }) => ({ api, headers }),
  };
  return new WorkflowChatTransport({ ...rest, ...(unmodified ? {} : named), initialStartIndex: startIndex });
}

async function drive({ api, id, sdk: version, answers, messages, actions, workflow }) {
  const sdk = await import(packages[version]);
  class Chat extends sdk.AbstractChat {}
  const seen = { data: [], finishes: [], bodies: [] };
  let current;
  let onEnd = () => {};
  const options = {
    api: `${api}/chat`,
    headers: version === 6 ? {} : { "x-ai-sdk": String(version) },
    fetch: (url, options) => {
      if (options.body) seen.bodies.push(JSON.parse(options.body));
      return current(url, options);
    },
  };
  const transport = workflow ? await workflowTransport(options, workflow) : new sdk.DefaultChatTransport(options);
  const chat = new Chat({
    id,
    state: new State(messages),
    transport,
    sendAutomaticallyWhen: answers ? whenAnswered(sdk) : undefined,
    onData: (part) => seen.data.push(part),
    onFinish: ({ isAbort, isDisconnect, isError, finishReason }) => {
      seen.finishes.push({ isAbort, isDisconnect, isError, finishReason });
      onEnd();
    },
  });
  // The helpers send by themselves, and nobody is given the promise of it.
  const sentByItself = async (action, answer) => {
    const ended = new Promise((resolve) => (onEnd = resolve));
    await answer();
    if (action.sends) await ended;
    do await new Promise(setImmediate);
    while (chat.status === "submitted" || chat.status === "streaming");
  };
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
    if (action.do === "submit") await chat.sendMessage();
    if (action.do === "resume") await chat.resumeStream();
    if (action.do === "regenerate") await chat.regenerate({ messageId: action.messageId });
    if (action.do === "post") await post(`${api}/chat`, action.body);
    if (action.do === "validate")
      seen.valid = (await sdk.safeValidateUIMessages({ messages: chat.messages })).success;
    if (action.do === "decide") await sentByItself(action, () => chat.addToolApprovalResponse(action.response));
    if (action.do === "output") await sentByItself(action, () => chat.addToolOutput(action.result));
  }
  return { status: chat.status, error: chat.error?.message ?? null, messages: chat.messages, ...seen };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { number, ...wanted } = JSON.parse(line);
  drive(wanted)
    .catch((error) => ({ crashed: String(error?.stack ?? error) }))
    .then((result) => console.log(JSON.stringify({ number, ...result })));
}
