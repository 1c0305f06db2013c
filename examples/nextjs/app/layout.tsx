import type { Metadata } from "next";
import { ThemeProvider } from "next-themes";
import type { ReactNode } from "react";
import { Sidebar } from "@/components/Sidebar";
import { SessionsProvider } from "@/components/SessionsProvider";
import "./globals.css";

export const metadata: Metadata = { title: "Chat" };

export default function Layout({ children }: { children: ReactNode }) {
  return (
    // The theme's class is there before React starts.
    <html lang="en" suppressHydrationWarning>
      <body className="flex h-dvh flex-col bg-background text-foreground antialiased md:flex-row">
        <ThemeProvider attribute="class">
          <SessionsProvider>
            <Sidebar />
            <main className="flex min-h-0 min-w-0 flex-1 flex-col">{children}</main>
          </SessionsProvider>
        </ThemeProvider>
      </body>
    </html>
  );
}
