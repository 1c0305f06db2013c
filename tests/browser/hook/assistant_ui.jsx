// A chat as assistant-ui's documentation shows it: its runtime for the AI SDK and a thread of its primitives. The page
// opens the user's latest chat, with its stored messages.
import {
  ActionBarPrimitive,
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import { AssistantChatTransport, useChatRuntime } from "@assistant-ui/react-ai-sdk";
import { createRoot } from "react-dom/client";

const transport = new AssistantChatTransport({ api: "/chat" });

const Message = (role, action) => () => (
  <MessagePrimitive.Root>
    <article aria-label={role}>
      <MessagePrimitive.Parts />
    </article>
    <ActionBarPrimitive.Root>{action}</ActionBarPrimitive.Root>
  </MessagePrimitive.Root>
);
const components = {
  UserMessage: Message("user", <ActionBarPrimitive.Edit>Edit</ActionBarPrimitive.Edit>),
  UserEditComposer: () => (
    <ComposerPrimitive.Root>
      <ComposerPrimitive.Input aria-label="Edited message" />
      <ComposerPrimitive.Send>Update</ComposerPrimitive.Send>
    </ComposerPrimitive.Root>
  ),
  AssistantMessage: Message("assistant", <ActionBarPrimitive.Reload>Reload</ActionBarPrimitive.Reload>),
};

function Thread({ messages }) {
  return (
    <AssistantRuntimeProvider runtime={useChatRuntime({ transport, messages })}>
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Messages components={components} />
        <ThreadPrimitive.If running>
          <p role="status">Answering</p>
        </ThreadPrimitive.If>
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="Message" />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

const read = async (path) => (await fetch(path)).json();
const [latest] = (await read("/sessions")).sessions;
const { messages } = latest ? await read(`/sessions/${latest.id}/messages`) : { messages: [] };
createRoot(document.getElementById("root")).render(<Thread messages={messages} />);
