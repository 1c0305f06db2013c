import type { ComponentProps } from "react";
import { cn } from "@/lib/utils";
import { Button } from "./ui/button";

/** A small button that shows an icon, and its name to whoever points at it or cannot see it. */
export function IconButton({ label, className, ...props }: ComponentProps<typeof Button> & { label: string }) {
  const classes = cn("text-muted-foreground", className);
  return <Button className={classes} variant="ghost" size="icon-sm" aria-label={label} title={label} {...props} />;
}
