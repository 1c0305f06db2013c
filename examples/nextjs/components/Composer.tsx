"use client";

import { type KeyboardEvent, useState } from "react";

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
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        aria-label="Message"
        autoFocus
        placeholder="Ask anything"
        rows={2}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
      />
      {answering ? (
        <button type="button" onClick={onStop}>
          Stop
        </button>
      ) : (
        <button type="submit" className="primary" disabled={!text.trim()}>
          Send
        </button>
      )}
    </form>
  );
}
