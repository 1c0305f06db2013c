"use client";

import { useChat } from "@ai-sdk/react";
import { useCallback, useEffect, useRef, useState } from "react";
import { type MessagePage, loadMessages, nameSession } from "@/lib/api";
import { Conversation } from "@/lib/conversation";
import { Composer } from "./Composer";
import { ErrorText } from "./ErrorText";
import { MessageView } from "./MessageView";
import { useSessions } from "./SessionsProvider";

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
  const { messages, setMessages, sendMessage, regenerate, addToolApprovalResponse, status, error } = useChat({ chat: conversation.chat });
  const [before, setBefore] = useState(page.before);
  const [stopError, setStopError] = useState<Error>();
  const end = useRef<HTMLDivElement>(null);
  const answering = reconnecting || status === "submitted" || status === "streaming";

  useEffect(() => void conversation.follow(), [conversation]);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [messages]);

  async function showEarlier() {
    const earlier = await loadMessages(id, before ?? undefined);
    setBefore(earlier.before);
    setMessages((shown) => [...earlier.messages, ...shown]);
  }

  return (
    <>
      <section aria-live="polite">
        {before && <button onClick={() => void showEarlier()}>Earlier messages</button>}
        {messages.map((message, index) => (
          <MessageView
            key={message.id}
            message={message}
            onDecide={(id, approved) => void addToolApprovalResponse({ id, approved })}
            onRegenerate={
              !answering && message.role === "assistant" && index === messages.length - 1
                ? () => void regenerate({ messageId: message.id })
                : undefined
            }
          />
        ))}
        {status === "submitted" && <p className="quiet">…</p>}
        {reconnecting && <p className="quiet">Reconnecting …</p>}
        {error && !reconnecting && <ErrorText error={error} onRetry={() => conversation.retry()} />}
        {stopError && <ErrorText error={stopError} />}
        <div ref={end} />
      </section>
      <Composer
        answering={answering}
        onSend={(text) => void sendMessage({ text })}
        onStop={() => void conversation.stop().then(() => setStopError(undefined), setStopError)}
      />
    </>
  );
}
