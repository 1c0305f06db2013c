// A chat as the AI SDK's documentation shows it: `useChat` with its default transport, `resume`, and the stored messages.
// Tests act through `window.chat` and read what a user sees from the document.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { useEffect } from "react";
import { createRoot } from "react-dom/client";

const id = new URLSearchParams(location.search).get("id");

function Chat({ stored }) {
  const chat = useChat({ id, messages: stored, resume: true, transport: new DefaultChatTransport({ api: "/chat" }) });
  useEffect(() => {
    window.chat = chat;
  });
  return (
    <main data-status={chat.status} data-messages={JSON.stringify(chat.messages)}>
      {chat.messages.map((message) => (
        <article key={message.id} aria-label={message.role}>
          {message.parts.map((part, index) => (part.type === "text" ? <p key={index}>{part.text}</p> : null))}
        </article>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
    </main>
  );
}

const response = await fetch(`/sessions/${id}/messages`);
const { messages } = response.ok ? await response.json() : { messages: [] };
createRoot(document.getElementById("root")).render(<Chat stored={messages} />);
