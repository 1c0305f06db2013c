"use client";

import { useCallback, useEffect, useState } from "react";
import { type MessagePage, loadMessages } from "@/lib/api";
import { ChatView } from "./ChatView";
import { ErrorText } from "./ErrorText";

/** Reads what is stored of a chat, then opens it. */
export function ChatLoader({ id }: { id: string }) {
  const [page, setPage] = useState<MessagePage>();
  const [error, setError] = useState<Error>();
  const load = useCallback(() => {
    setError(undefined);
    loadMessages(id).then(setPage, setError);
  }, [id]);
  useEffect(load, [load]);
  if (error) return <ErrorText className="m-4" error={error} onRetry={load} />;
  if (!page) return <p className="p-4 text-center text-muted-foreground">Loading …</p>;
  return <ChatView id={id} page={page} />;
}
