"use client";

import { Menu, Plus, X } from "lucide-react";
import Link from "next/link";
import { useParams, useRouter } from "next/navigation";
import { useState } from "react";
import { type Session, deleteSession } from "@/lib/api";
import { ErrorText } from "./ErrorText";
import { IconButton } from "./IconButton";
import { useSessions } from "./SessionsProvider";
import { Button } from "./ui/button";
import { Dialog, DialogClose, DialogContent, DialogDescription, DialogTitle, DialogTrigger } from "./ui/dialog";

/** The chats: beside the open one, or behind a button on a phone. */
export function Sidebar() {
  const [open, setOpen] = useState(false);
  return (
    <>
      <aside className="hidden w-64 shrink-0 flex-col border-r bg-sidebar md:flex">
        <Chats />
      </aside>
      <header className="border-b p-2 md:hidden">
        <Dialog open={open} onOpenChange={setOpen}>
          <DialogTrigger asChild>
            <Button variant="ghost">
              <Menu /> Chats
            </Button>
          </DialogTrigger>
          <DialogContent
            aria-describedby={undefined}
            className="inset-y-0 left-0 flex w-72 translate-0 flex-col rounded-none bg-sidebar p-0 slide-in-from-left"
          >
            <DialogTitle className="sr-only">Chats</DialogTitle>
            <Chats onLeave={() => setOpen(false)} />
          </DialogContent>
        </Dialog>
      </header>
    </>
  );
}

function Chats({ onLeave }: { onLeave?: () => void }) {
  const { sessions, error, refresh } = useSessions();
  const { id: open } = useParams<{ id?: string }>();
  const router = useRouter();
  const [failure, setFailure] = useState<Error>();

  async function remove(id: string) {
    await deleteSession(id);
    await refresh();
    if (id === open) router.push("/");
  }

  return (
    <nav className="flex min-h-0 flex-1 flex-col gap-3 p-3">
      <Button asChild variant="outline">
        <Link href="/" prefetch={false} onClick={onLeave}>
          <Plus /> New chat
        </Link>
      </Button>
      {error && <ErrorText error={error} onRetry={refresh} />}
      {failure && <ErrorText error={failure} />}
      <ul className="flex-1 overflow-y-auto">
        {sessions.map((session) => (
          <li
            key={session.id}
            aria-current={session.id === open ? "page" : undefined}
            className="group flex items-center rounded-md pr-1 text-sm hover:bg-accent aria-[current]:bg-accent"
          >
            <Link className="flex-1 truncate p-2" href={`/chat/${encodeURIComponent(session.id)}`} onClick={onLeave}>
              {session.name ?? "New chat"}
            </Link>
            <Deletion
              session={session}
              onConfirm={() => void remove(session.id).then(() => setFailure(undefined), setFailure)}
            />
          </li>
        ))}
      </ul>
    </nav>
  );
}

function Deletion({ session, onConfirm }: { session: Session; onConfirm: () => void }) {
  return (
    <Dialog>
      <DialogTrigger asChild>
        <IconButton label="Delete this chat" className="md:not-group-focus-within:not-group-hover:opacity-0">
          <X />
        </IconButton>
      </DialogTrigger>
      <DialogContent>
        <DialogTitle className="font-semibold">Delete this chat?</DialogTitle>
        <DialogDescription className="text-sm">{session.name ?? "New chat"}, and everything in it.</DialogDescription>
        <div className="flex justify-end gap-2">
          <DialogClose asChild>
            <Button variant="outline">Cancel</Button>
          </DialogClose>
          <DialogClose asChild>
            <Button variant="destructive" onClick={onConfirm}>
              Delete
            </Button>
          </DialogClose>
        </div>
      </DialogContent>
    </Dialog>
  );
}
