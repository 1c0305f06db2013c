"use client";

import { type ReactNode, createContext, useCallback, useContext, useEffect, useMemo, useState } from "react";
import { type Session, listSessions } from "@/lib/api";

type Sessions = { sessions: Session[]; error: Error | undefined; refresh: () => Promise<void> };

const SessionsContext = createContext<Sessions>({ sessions: [], error: undefined, refresh: async () => {} });

/** The user's chats, newest first, for everything on the page. */
export function SessionsProvider({ children }: { children: ReactNode }) {
  const [sessions, setSessions] = useState<Session[]>([]);
  const [error, setError] = useState<Error>();
  const refresh = useCallback(async () => {
    try {
      setSessions(await listSessions());
      setError(undefined);
    } catch (problem) {
      setError(problem as Error);
    }
  }, []);
  useEffect(() => void refresh(), [refresh]);
  const value = useMemo(() => ({ sessions, error, refresh }), [sessions, error, refresh]);
  return <SessionsContext value={value}>{children}</SessionsContext>;
}

export const useSessions = () => useContext(SessionsContext);
