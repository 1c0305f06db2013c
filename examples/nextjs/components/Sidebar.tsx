"use client";

import Link from "next/link";
import { useParams, useRouter } from "next/navigation";
import { deleteSession } from "@/lib/api";
import { ErrorText } from "./ErrorText";
import { useSessions } from "./SessionsProvider";

export function Sidebar() {
  const { sessions, error, refresh } = useSessions();
  const { id: open } = useParams<{ id?: string }>();
  const router = useRouter();

  async function remove(id: string) {
    if (!confirm("Delete this chat and everything in it?")) return;
    await deleteSession(id);
    await refresh();
    if (id === open) router.push("/");
  }

  return (
    <nav>
      <Link className="new" href="/" prefetch={false}>
        New chat
      </Link>
      {error && <ErrorText error={error} onRetry={refresh} />}
      <ul>
        {sessions.map((session) => (
          <li key={session.id} aria-current={session.id === open ? "page" : undefined}>
            <Link href={`/chat/${encodeURIComponent(session.id)}`}>{session.name ?? "New chat"}</Link>
            <button aria-label="Delete this chat" onClick={() => void remove(session.id)}>
              ×
            </button>
          </li>
        ))}
      </ul>
    </nav>
  );
}
