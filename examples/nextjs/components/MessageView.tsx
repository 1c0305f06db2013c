import { isToolUIPart } from "ai";
import { useState } from "react";
import type { ChatMessage, Siblings } from "@/lib/api";
import { Markdown } from "./Markdown";
import { type Decide, ToolCall } from "./ToolCall";

type Part = ChatMessage["parts"][number];

/** How an answer ended, where that is worth a word. */
const ENDINGS: Record<string, string> = {
  cancelled: "Stopped.",
  interrupted: "Interrupted.",
};

type Props = {
  message: ChatMessage;
  /** An answer is being written: nothing else can be started. */
  busy: boolean;
  onDecide: Decide;
  onEdit: (text: string) => void;
  onRegenerate: () => void;
  onSwitch: (nodeId: string) => void;
};

export function MessageView({ message, busy, onDecide, onEdit, onRegenerate, onSwitch }: Props) {
  const [editing, setEditing] = useState(false);
  const ending = ENDINGS[message.metadata?.status ?? ""];
  const waits = message.metadata?.status === "waiting";
  const text = textOf(message);
  if (editing) {
    const done = (edited?: string) => {
      setEditing(false);
      if (edited && edited !== text) onEdit(edited);
    };
    return <Editor text={text} onDone={done} />;
  }
  return (
    <article data-role={message.role}>
      <div className="bubble">
        {message.parts.map((part, index) => (
          <PartView key={index} part={part} role={message.role} onDecide={onDecide} />
        ))}
        {ending && <p className="quiet">{ending}</p>}
      </div>
      {!busy && (
        <footer data-branches={message.metadata?.siblings ? "" : undefined}>
          {message.metadata?.siblings && <Branches siblings={message.metadata.siblings} onSwitch={onSwitch} />}
          {text && <button onClick={() => void navigator.clipboard.writeText(text)}>Copy</button>}
          {message.role === "user" && <button onClick={() => setEditing(true)}>Edit</button>}
          {message.role === "assistant" && !waits && <button onClick={onRegenerate}>Regenerate</button>}
        </footer>
      )}
    </article>
  );
}

function textOf(message: ChatMessage): string {
  return message.parts
    .flatMap((part) => (part.type === "text" ? part.text : []))
    .join("\n\n")
    .trim();
}

function PartView({ part, role, onDecide }: { part: Part; role: ChatMessage["role"]; onDecide: Decide }) {
  if (part.type === "text") {
    return role === "user" ? <p className="text">{part.text}</p> : <Markdown text={part.text} />;
  }
  if (part.type === "reasoning") {
    return (
      <details className="reasoning">
        <summary>{part.state === "streaming" ? "Thinking …" : "Reasoning"}</summary>
        <p className="text">{part.text}</p>
      </details>
    );
  }
  if (part.type === "source-url") {
    return (
      <a className="badge" href={part.url} target="_blank" rel="noreferrer">
        {part.title ?? part.url}
      </a>
    );
  }
  return isToolUIPart(part) && part.type !== "dynamic-tool" ? <ToolCall part={part} onDecide={onDecide} /> : null;
}

/** `2 / 3`: the versions of a message. Switching shows the conversation that follows that one. */
function Branches({ siblings, onSwitch }: { siblings: Siblings; onSwitch: (nodeId: string) => void }) {
  const { index, count, previous, next } = siblings;
  return (
    <span className="branches">
      <button aria-label="Previous version" disabled={!previous} onClick={() => previous && onSwitch(previous)}>
        ‹
      </button>
      {index} / {count}
      <button aria-label="Next version" disabled={!next} onClick={() => next && onSwitch(next)}>
        ›
      </button>
    </span>
  );
}

function Editor({ text, onDone }: { text: string; onDone: (edited?: string) => void }) {
  const [edited, setEdited] = useState(text);
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        onDone(edited.trim());
      }}
    >
      <textarea autoFocus aria-label="Edit message" rows={3} value={edited} onChange={(event) => setEdited(event.target.value)} />
      <div className="row">
        <button type="submit" className="primary" disabled={!edited.trim()}>
          Send
        </button>
        <button type="button" className="ghost" onClick={() => onDone()}>
          Cancel
        </button>
      </div>
    </form>
  );
}
