import { type ToolUIPart, getToolName } from "ai";
import { useState } from "react";

/** What the server says of a request, also why it asks. */
type Approval = { id: string; approved?: boolean; reason?: string; requestReason?: string };

export type Decide = (approvalId: string, approved: boolean, reason?: string) => void;

const STATES: Partial<Record<ToolUIPart["state"], string>> = {
  "output-available": "Done",
  "output-error": "Failed",
  "output-denied": "Denied",
  "approval-responded": "Answered",
};

/** A tool call: a card that asks where somebody has to decide, else a line that opens. */
export function ToolCall({ part, onDecide }: { part: ToolUIPart; onDecide: Decide }) {
  const approval = part.approval as Approval | undefined;
  if (part.state === "approval-requested" && approval) {
    return <ApprovalCard name={getToolName(part)} input={part.input} approval={approval} onDecide={onDecide} />;
  }
  return (
    <details className="tool" data-state={part.state}>
      <summary>
        <code>{getToolName(part)}</code> <span className="badge">{STATES[part.state] ?? "Running …"}</span>
      </summary>
      <Arguments input={part.input} />
      {part.state === "output-available" && <pre>{JSON.stringify(part.output, null, 2)}</pre>}
      {part.state === "output-error" && <p>{part.errorText}</p>}
      {approval?.reason && <p className="quiet">Reason: {approval.reason}</p>}
    </details>
  );
}

type CardProps = { name: string; input: unknown; approval: Approval; onDecide: Decide };

function ApprovalCard({ name, input, approval, onDecide }: CardProps) {
  const [denying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  return (
    <section className="card" aria-label={`Allow ${name}?`}>
      <h3>
        Allow <code>{name}</code>?
      </h3>
      {approval.requestReason && <p>{approval.requestReason}</p>}
      <Arguments input={input} />
      {denying ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            onDecide(approval.id, false, reason.trim() || undefined);
          }}
        >
          <input
            autoFocus
            aria-label="Reason"
            placeholder="Why not? The model reads it."
            value={reason}
            onChange={(event) => setReason(event.target.value)}
          />
          <button type="submit" className="danger">
            Deny
          </button>
          <button type="button" className="ghost" onClick={() => setDenying(false)}>
            Back
          </button>
        </form>
      ) : (
        <div className="row">
          <button className="primary" onClick={() => onDecide(approval.id, true)}>
            Approve
          </button>
          <button className="ghost" onClick={() => setDenying(true)}>
            Deny …
          </button>
        </div>
      )}
    </section>
  );
}

function Arguments({ input }: { input: unknown }) {
  if (typeof input !== "object" || input === null) return null;
  const rows = Object.entries(input);
  if (rows.length === 0) return null;
  return (
    <table>
      <tbody>
        {rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{typeof value === "string" ? value : JSON.stringify(value)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
