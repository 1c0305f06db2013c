import { ArrowUp, Square } from "lucide-react";
import { type KeyboardEvent, useState } from "react";
import { Button } from "./ui/button";
import { Textarea } from "./ui/textarea";

type Props = { answering: boolean; onSend: (text: string) => void; onStop: () => void };

export function Composer({ answering, onSend, onStop }: Props) {
  const [text, setText] = useState("");

  function send() {
    if (answering || !text.trim()) return;
    onSend(text);
    setText("");
  }

  function onKeyDown(event: KeyboardEvent) {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  }

  return (
    <form
      className="mx-auto mb-4 flex w-[95%] max-w-3xl items-end rounded-2xl border bg-card p-2 focus-within:border-ring"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <Textarea
        aria-label="Message"
        autoFocus
        className="max-h-48 border-0 focus-visible:ring-0"
        placeholder="Ask anything"
        rows={1}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
      />
      {answering ? (
        <Button className="rounded-full" size="icon" type="button" aria-label="Stop" onClick={onStop}>
          <Square className="fill-current" />
        </Button>
      ) : (
        <Button className="rounded-full" size="icon" type="submit" aria-label="Send" disabled={!text.trim()}>
          <ArrowUp />
        </Button>
      )}
    </form>
  );
}
