import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { CHAT_URL, type ChatMessage, type MessagePage, loadMessages, request, stopAnswer } from "./api";

const ATTEMPTS = 8;
const LONGEST_WAIT_MS = 15_000;
/** An answer that has not begun cannot be stopped yet. */
const STOP_PAUSE_MS = 300;

type Events = {
  /** A turn was stored. */
  onTurn: (turnNumber: number) => void;
  /** The connection was lost and is being looked for, or that is over. */
  onReconnecting: (reconnecting: boolean) => void;
};

/**
 * One chat that survives reloads and lost connections.
 *
 * It hands `useChat` a `Chat` of its own. The one that `useChat` makes forgets that our streams are replayed from their
 * first event, and would show the beginning of an answer twice after a reconnect.
 */
export class Conversation {
  readonly chat: Chat<ChatMessage>;
  #events: Events;
  #lost = false;
  #following: Promise<void> | undefined;

  constructor(id: string, messages: ChatMessage[], events: Events) {
    this.#events = events;
    this.chat = new Chat<ChatMessage>({
      id,
      messages,
      transport: new DefaultChatTransport<ChatMessage>({
        api: `${CHAT_URL}/chat`,
        fetch: request,
        // The server has the history: send what is new, and the message before it, which says where it belongs.
        // The message's id makes a second try harmless.
        prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
          body: { id, trigger, messages: messages.slice(-2), messageId },
        }),
      }),
      // Once every call of the last step is approved or denied, the answers are sent and the turn goes on.
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      onData: (part) => {
        if (part.type === "data-session") events.onTurn(part.data.turnNumber ?? 0);
      },
      onFinish: ({ isAbort, isError, finishReason }) => {
        // A stream that broke, or that ended without `finish`, says nothing about the answer: look for it again.
        this.#lost = isError ? this.chat.error instanceof TypeError : !isAbort && finishReason === undefined;
        if (this.#lost) void this.follow();
        // What the stream does not say: why a call needs an approval, and which versions a message has.
        else if (!isAbort && !isError) void this.#refresh();
      },
    });
  }

  /** Pick up the running answer: after a reload, or after the connection was lost. */
  follow(): Promise<void> {
    this.#following ??= this.#follow().finally(() => {
      this.#following = undefined;
      this.#events.onReconnecting(false);
    });
    return this.#following;
  }

  /** Stop on the server, in whichever instance it runs. `chat.stop()` would only close this page's connection. */
  async stop(): Promise<void> {
    const question = this.#question();
    if (!question) return;
    while (!(await stopAnswer(this.chat.id, question.id)) && this.chat.status === "submitted") await wait(STOP_PAUSE_MS);
  }

  /** Try again what failed, as the same message. Where the connection failed, look for the answer first. */
  async retry(): Promise<void> {
    if (this.chat.error instanceof TypeError) return this.follow();
    this.chat.clearError();
    if (this.chat.lastMessage?.role === "user") await this.chat.sendMessage();
    else await this.chat.regenerate();
  }

  async #follow(): Promise<void> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      if (this.#lost) {
        this.#events.onReconnecting(true);
        await wait(Math.min(500 * 2 ** attempt, LONGEST_WAIT_MS));
      }
      const before = this.chat.messages;
      this.#lost = false;
      await this.chat.resumeStream();
      if (this.chat.status === "error") this.#lost = this.chat.error instanceof TypeError;
      if (this.#lost) continue;
      if (this.chat.status !== "ready" || this.chat.messages !== before) return;
      this.#lost = await this.#catchUp().then(
        () => false,
        () => true,
      );
      if (!this.#lost) return;
    }
  }

  /** Nothing runs. Show what is stored; a message that never arrived is sent again under its id. */
  async #catchUp(): Promise<void> {
    const shown = this.chat.messages;
    const question = this.#question();
    if (!question) return;
    const stored = await loadMessages(this.chat.id);
    if (this.chat.messages !== shown) return; // the user went on meanwhile
    if (stored.messages.some((message) => message.id === question.id)) this.#show(stored);
    else if (this.chat.lastMessage === question) await this.chat.sendMessage();
  }

  async #refresh(): Promise<void> {
    const shown = this.chat.messages;
    const stored = await loadMessages(this.chat.id).catch(() => undefined);
    // The user went on meanwhile, or the answer is not there yet.
    if (this.chat.messages !== shown || stored?.messages.at(-1)?.id !== shown.at(-1)?.id) return;
    if (stored) this.#show(stored);
  }

  #show({ messages }: MessagePage): void {
    const first = this.chat.messages.findIndex((message) => message.id === messages[0]?.id);
    this.chat.messages = [...this.chat.messages.slice(0, Math.max(first, 0)), ...messages];
  }

  #question(): ChatMessage | undefined {
    return this.chat.messages.findLast((message) => message.role === "user");
  }
}

function wait(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
