import type { Metadata } from "next";
import type { ReactNode } from "react";
import { Sidebar } from "@/components/Sidebar";
import { SessionsProvider } from "@/components/SessionsProvider";
import "./globals.css";

export const metadata: Metadata = { title: "Chat" };

export default function Layout({ children }: { children: ReactNode }) {
  return (
    <html lang="en">
      <body>
        <SessionsProvider>
          <Sidebar />
          <main>{children}</main>
        </SessionsProvider>
      </body>
    </html>
  );
}
