import { isToolUIPart } from "ai";
import { Brain, ChevronLeft, ChevronRight, Copy, Pencil, RefreshCw } from "lucide-react";
import { useState } from "react";
import type { ChatMessage, Siblings } from "@/lib/api";
import { cn } from "@/lib/utils";
import { IconButton } from "./IconButton";
import { Markdown } from "./Markdown";
import { type Decide, ToolCall } from "./ToolCall";
import { Badge } from "./ui/badge";
import { Button } from "./ui/button";
import { Collapsible, CollapsibleContent, CollapsibleTrigger } from "./ui/collapsible";
import { Textarea } from "./ui/textarea";

type Part = ChatMessage["parts"][number];

/** How an answer ended, where that is worth a word. */
const ENDINGS: Record<string, string> = {
  cancelled: "Stopped.",
  interrupted: "Interrupted.",
};

/** The newest message and a phone show what can be done with a message, others when pointed at. */
const SHOWN_ON_HOVER =
  "md:not-group-hover/message:not-group-focus-within/message:not-group-last-of-type/message:opacity-0";

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
    <article className="group/message flex flex-col data-[role=user]:items-end" data-role={message.role}>
      <div className={message.role === "user" ? "max-w-[85%] rounded-2xl bg-secondary px-4 py-2" : undefined}>
        {message.parts.map((part, index) => (
          <PartView key={index} part={part} role={message.role} onDecide={onDecide} />
        ))}
        {ending && <p className="mt-2 text-sm text-muted-foreground">{ending}</p>}
      </div>
      {!busy && (
        <footer className={cn("flex min-h-8 items-center", !message.metadata?.siblings && SHOWN_ON_HOVER)}>
          {message.metadata?.siblings && <Branches siblings={message.metadata.siblings} onSwitch={onSwitch} />}
          {text && (
            <IconButton label="Copy" onClick={() => void navigator.clipboard.writeText(text)}>
              <Copy />
            </IconButton>
          )}
          {message.role === "user" && (
            <IconButton label="Edit" onClick={() => setEditing(true)}>
              <Pencil />
            </IconButton>
          )}
          {message.role === "assistant" && !waits && (
            <IconButton label="Regenerate" onClick={onRegenerate}>
              <RefreshCw />
            </IconButton>
          )}
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
    if (role === "user") return <p className="wrap-anywhere whitespace-pre-wrap">{part.text}</p>;
    return <Markdown text={part.text} streaming={part.state === "streaming"} />;
  }
  if (part.type === "reasoning") {
    return (
      <Collapsible className="my-2 text-sm text-muted-foreground">
        <CollapsibleTrigger className="flex cursor-pointer items-center gap-2">
          <Brain className="size-4" />
          {part.state === "streaming" ? "Thinking …" : "Reasoning"}
        </CollapsibleTrigger>
        <CollapsibleContent className="mt-2 border-l-2 pl-4 whitespace-pre-wrap">{part.text}</CollapsibleContent>
      </Collapsible>
    );
  }
  if (part.type === "source-url") {
    return (
      <Badge variant="outline">
        <a href={part.url} target="_blank" rel="noreferrer">
          {part.title ?? part.url}
        </a>
      </Badge>
    );
  }
  return isToolUIPart(part) && part.type !== "dynamic-tool" ? <ToolCall part={part} onDecide={onDecide} /> : null;
}

/** `2 / 3`: the versions of a message. Switching shows the conversation that follows that one. */
function Branches({ siblings, onSwitch }: { siblings: Siblings; onSwitch: (nodeId: string) => void }) {
  const { index, count, previous, next } = siblings;
  return (
    <span className="flex items-center text-sm text-muted-foreground tabular-nums">
      <IconButton label="Previous version" disabled={!previous} onClick={() => previous && onSwitch(previous)}>
        <ChevronLeft />
      </IconButton>
      {index} / {count}
      <IconButton label="Next version" disabled={!next} onClick={() => next && onSwitch(next)}>
        <ChevronRight />
      </IconButton>
    </span>
  );
}

function Editor({ text, onDone }: { text: string; onDone: (edited?: string) => void }) {
  const [edited, setEdited] = useState(text);
  return (
    <form
      className="flex flex-col gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        onDone(edited.trim());
      }}
    >
      <Textarea autoFocus aria-label="Edit message" value={edited} onChange={({ target }) => setEdited(target.value)} />
      <div className="flex justify-end gap-2">
        <Button type="button" variant="ghost" size="sm" onClick={() => onDone()}>
          Cancel
        </Button>
        <Button type="submit" size="sm" disabled={!edited.trim()}>
          Send
        </Button>
      </div>
    </form>
  );
}
