import { type ToolUIPart, getToolName } from "ai";
import { ChevronDown, Wrench } from "lucide-react";
import { useState } from "react";
import { Badge } from "./ui/badge";
import { Button } from "./ui/button";
import { Card, CardFooter, CardTitle } from "./ui/card";
import { Collapsible, CollapsibleContent, CollapsibleTrigger } from "./ui/collapsible";
import { Input } from "./ui/input";

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
    <Collapsible className="my-3 rounded-lg border bg-card text-sm">
      <CollapsibleTrigger className="group flex w-full cursor-pointer items-center gap-2 px-3 py-2">
        <Wrench className="size-4 text-muted-foreground" />
        <span className="font-medium">{getToolName(part)}</span>
        <Badge variant={part.state === "output-error" ? "destructive" : "secondary"}>
          {STATES[part.state] ?? "Running …"}
        </Badge>
        <ChevronDown className="ml-auto size-4 text-muted-foreground group-data-[state=open]:rotate-180" />
      </CollapsibleTrigger>
      <CollapsibleContent className="flex flex-col gap-2 border-t p-3">
        <Arguments input={part.input} />
        {part.state === "output-available" && (
          <pre className="overflow-x-auto rounded-md bg-muted p-3 text-xs">{JSON.stringify(part.output, null, 2)}</pre>
        )}
        {part.state === "output-error" && <p className="text-destructive">{part.errorText}</p>}
        {approval?.reason && <p className="text-muted-foreground">Reason: {approval.reason}</p>}
      </CollapsibleContent>
    </Collapsible>
  );
}

type CardProps = { name: string; input: unknown; approval: Approval; onDecide: Decide };

function ApprovalCard({ name, input, approval, onDecide }: CardProps) {
  const [denying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  return (
    <Card className="my-3" aria-label={`Allow ${name}?`}>
      <CardTitle>
        Allow <code>{name}</code>?
      </CardTitle>
      {approval.requestReason && <p className="text-sm text-muted-foreground">{approval.requestReason}</p>}
      <Arguments input={input} />
      {denying ? (
        <form
          className="flex flex-col gap-3"
          onSubmit={(event) => {
            event.preventDefault();
            onDecide(approval.id, false, reason.trim() || undefined);
          }}
        >
          <Input
            autoFocus
            aria-label="Reason"
            placeholder="Why not? The model reads it."
            value={reason}
            onChange={(event) => setReason(event.target.value)}
          />
          <CardFooter>
            <Button type="submit" variant="destructive" size="sm">
              Deny
            </Button>
            <Button type="button" variant="ghost" size="sm" onClick={() => setDenying(false)}>
              Back
            </Button>
          </CardFooter>
        </form>
      ) : (
        <CardFooter>
          <Button size="sm" onClick={() => onDecide(approval.id, true)}>
            Approve
          </Button>
          <Button variant="ghost" size="sm" onClick={() => setDenying(true)}>
            Deny …
          </Button>
        </CardFooter>
      )}
    </Card>
  );
}

function Arguments({ input }: { input: unknown }) {
  if (typeof input !== "object" || input === null) return null;
  const rows = Object.entries(input);
  if (rows.length === 0) return null;
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-1 text-sm">
      {rows.map(([name, value]) => (
        <div key={name} className="col-span-2 grid grid-cols-subgrid">
          <dt className="text-muted-foreground">{name}</dt>
          <dd className="wrap-anywhere">{typeof value === "string" ? value : JSON.stringify(value)}</dd>
        </div>
      ))}
    </dl>
  );
}
