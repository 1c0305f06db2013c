import type { UIMessage } from "ai";
import { authHeaders } from "./auth";
import { Problem } from "./problem";

// A Function URL ends with a slash.
const withoutSlash = (url: string) => url.replace(/\/+$/, "");
export const CHAT_URL = withoutSlash(process.env.NEXT_PUBLIC_CHAT_URL ?? "http://127.0.0.1:8000");
const SESSIONS_URL = withoutSlash(process.env.NEXT_PUBLIC_SESSIONS_URL ?? "http://127.0.0.1:8000");

/** The versions of a message: which one this is (from 1), and the nodes of its neighbours. */
export type Siblings = { index: number; count: number; previous?: string; next?: string };
/** What the server adds to a message. The history is a tree: an edit and a regeneration make a sibling. */
export type Metadata = {
  sessionId?: string;
  turnNumber?: number;
  status?: string;
  nodeId?: string;
  parentId?: string;
  siblings?: Siblings;
};
export type ChatMessage = UIMessage<Metadata, { session: Metadata }>;

export type Session = { id: string; name: string | null; answering: boolean; updatedAt: string };
export type MessagePage = { messages: ChatMessage[]; before: string | null };

/** `fetch` that says who calls and throws a `Problem` for every refusal. */
export async function request(url: RequestInfo | URL, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  for (const [name, value] of Object.entries(await authHeaders())) headers.set(name, value);
  const response = await fetch(url, { ...init, headers });
  if (!response.ok) throw await Problem.from(response);
  return response;
}

export async function listSessions(): Promise<Session[]> {
  const response = await request(`${SESSIONS_URL}/sessions?limit=50`);
  const page = (await response.json()) as { sessions: Session[] };
  return page.sessions;
}

/** The newest messages of a chat, or those before. A chat that nobody has written in yet does not exist: it is empty. */
export async function loadMessages(id: string, before?: string): Promise<MessagePage> {
  const query = before ? `?before=${encodeURIComponent(before)}` : "";
  try {
    const response = await request(`${path(id)}/messages${query}`);
    return (await response.json()) as MessagePage;
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return { messages: [], before: null };
    throw error;
  }
}

/**
 * Stop the answer to this message on the server. The stream then ends by itself and keeps what was said.
 * False when no such answer runs: it has ended, or has not begun yet.
 */
export async function stopAnswer(id: string, messageId: string): Promise<boolean> {
  try {
    await request(`${path(id)}/cancel`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ message_id: messageId }),
    });
    return true;
  } catch (error) {
    // The first message of a chat makes the session.
    if (error instanceof Problem && ["no_running_turn", "not_found"].includes(error.code)) return false;
    throw error;
  }
}

/** Show another version of a message, and what followed it. */
export async function switchBranch(id: string, nodeId: string): Promise<void> {
  await request(`${path(id)}/branch`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ nodeId }),
  });
}

/** Let the model name the chat. */
export async function nameSession(id: string): Promise<void> {
  await request(`${path(id)}/name`, { method: "POST" });
}

export async function deleteSession(id: string): Promise<void> {
  await request(path(id), { method: "DELETE" });
}

function path(id: string): string {
  return `${SESSIONS_URL}/sessions/${encodeURIComponent(id)}`;
}
