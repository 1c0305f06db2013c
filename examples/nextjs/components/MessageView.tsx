import { getToolName, isToolUIPart } from "ai";
import type { ChatMessage } from "@/lib/api";

type Part = ChatMessage["parts"][number];

/** How an answer ended, where that is worth a word. */
const ENDINGS: Record<string, string> = {
  cancelled: "Stopped.",
  interrupted: "Interrupted.",
};

type Props = {
  message: ChatMessage;
  onDecide: (approvalId: string, approved: boolean) => void;
  onRegenerate?: () => void;
};

export function MessageView({ message, onDecide, onRegenerate }: Props) {
  const ending = ENDINGS[message.metadata?.status ?? ""];
  return (
    <article data-role={message.role}>
      {message.parts.map((part, index) => (
        <PartView key={index} part={part} onDecide={onDecide} />
      ))}
      {ending && <p className="quiet">{ending}</p>}
      {onRegenerate && <button onClick={onRegenerate}>Regenerate</button>}
    </article>
  );
}

function PartView({ part, onDecide }: { part: Part } & Pick<Props, "onDecide">) {
  if (part.type === "text") return <p className="text">{part.text}</p>;
  if (part.type === "reasoning") {
    return (
      <details>
        <summary>Reasoning</summary>
        <p className="text">{part.text}</p>
      </details>
    );
  }
  if (!isToolUIPart(part)) return null;
  if (part.state === "approval-requested") {
    const { id } = part.approval;
    return (
      <fieldset>
        <legend>Allow {getToolName(part)}?</legend>
        <pre>{JSON.stringify(part.input, null, 2)}</pre>
        <button onClick={() => onDecide(id, true)}>Approve</button> <button onClick={() => onDecide(id, false)}>Deny</button>
      </fieldset>
    );
  }
  return (
    <details>
      <summary>
        {getToolName(part)} {part.state === "output-error" ? "failed" : part.state === "output-denied" ? "denied" : part.state === "output-available" ? "✓" : "…"}
      </summary>
      <pre>{JSON.stringify(part.input, null, 2)}</pre>
      {part.state === "output-available" && <pre>{JSON.stringify(part.output, null, 2)}</pre>}
      {part.state === "output-error" && <p>{part.errorText}</p>}
    </details>
  );
}
