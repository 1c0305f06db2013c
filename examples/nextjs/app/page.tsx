import { redirect } from "next/navigation";

export const dynamic = "force-dynamic";

/** A new chat has an address from its first moment: a reload finds its running answer. */
export default function NewChat() {
  redirect(`/chat/${crypto.randomUUID()}`);
}
