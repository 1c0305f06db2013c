import { ChatLoader } from "@/components/ChatLoader";

export default async function ChatPage({ params }: { params: Promise<{ id: string }> }) {
  const { id } = await params;
  return <ChatLoader key={id} id={id} />;
}
