"use client";

import { useChat } from "@ai-sdk/react";
import { useCallback, useEffect, useRef, useState } from "react";
import { type MessagePage, loadMessages, nameSession, switchBranch } from "@/lib/api";
import { Conversation } from "@/lib/conversation";
import { Composer } from "./Composer";
import { ErrorText } from "./ErrorText";
import { MessageView } from "./MessageView";
import { useSessions } from "./SessionsProvider";
import { Button } from "./ui/button";

/** What a new chat offers: write your own. */
const SUGGESTIONS = [
  "What is 17.5% of 2,340 and what time is it in Tokyo?",
  "Please refund order 1001, 80 euros",
  "Write a Python function that checks whether a number is prime",
];

export function ChatView({ id, page }: { id: string; page: MessagePage }) {
  const { refresh } = useSessions();
  const onTurn = useCallback(
    async (turnNumber: number) => {
      if (turnNumber === 1) await nameSession(id).catch(() => undefined);
      await refresh();
    },
    [id, refresh],
  );
  const [reconnecting, onReconnecting] = useState(false);
  const [conversation] = useState(() => new Conversation(id, page.messages, { onTurn, onReconnecting }));
  const { messages, setMessages, sendMessage, regenerate, addToolApprovalResponse, status, error } = useChat({
    chat: conversation.chat,
  });
  const [before, setBefore] = useState(page.before);
  const [actionError, setActionError] = useState<Error>();
  const end = useRef<HTMLDivElement>(null);
  const answering = reconnecting || status === "submitted" || status === "streaming";

  useEffect(() => void conversation.follow(), [conversation]);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [messages, error, actionError]);

  async function showEarlier() {
    const earlier = await loadMessages(id, before ?? undefined);
    setBefore(earlier.before);
    setMessages((shown) => [...earlier.messages, ...shown]);
  }

  async function switchTo(nodeId: string) {
    await switchBranch(id, nodeId);
    const shown = await loadMessages(id);
    setBefore(shown.before);
    setMessages(shown.messages);
  }

  const act = (action: Promise<void>) => void action.then(() => setActionError(undefined), setActionError);

  return (
    <>
      <section className="flex-1 overflow-y-auto p-4" aria-live="polite">
        <div className="mx-auto flex max-w-3xl flex-col gap-4">
          {messages.length === 0 && !answering && <Greeting onAsk={(text) => void sendMessage({ text })} />}
          {before && (
            <Button className="self-center" variant="outline" size="sm" onClick={() => void showEarlier()}>
              Earlier messages
            </Button>
          )}
          {messages.map((message) => (
            <MessageView
              key={message.id}
              message={message}
              busy={answering}
              onDecide={(id, approved, reason) => void addToolApprovalResponse({ id, approved, reason })}
              onEdit={(text) => void sendMessage({ text, messageId: message.id })}
              onRegenerate={() => void regenerate({ messageId: message.id })}
              onSwitch={(nodeId) => act(switchTo(nodeId))}
            />
          ))}
          {status === "submitted" && <p className="animate-pulse text-muted-foreground">Thinking …</p>}
          {reconnecting && <p className="text-muted-foreground">Reconnecting …</p>}
          {error && !reconnecting && <ErrorText error={error} onRetry={() => conversation.retry()} />}
          {actionError && <ErrorText error={actionError} />}
          <div ref={end} />
        </div>
      </section>
      <Composer
        answering={answering}
        onSend={(text) => void sendMessage({ text })}
        onStop={() => act(conversation.stop())}
      />
    </>
  );
}

function Greeting({ onAsk }: { onAsk: (text: string) => void }) {
  return (
    <div className="mx-auto mt-[18dvh] grid w-full max-w-lg gap-2">
      <h1 className="mb-4 text-center text-2xl font-semibold tracking-tight">What can I do for you?</h1>
      {SUGGESTIONS.map((text) => (
        <Button
          key={text}
          className="h-auto justify-start px-4 py-3 text-start font-normal whitespace-normal"
          variant="outline"
          onClick={() => onAsk(text)}
        >
          {text}
        </Button>
      ))}
    </div>
  );
}
