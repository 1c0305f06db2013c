import type { ComponentProps } from "react";
import { cn } from "@/lib/utils";

export function Alert({ className, ...props }: ComponentProps<"div">) {
  return (
    <div
      data-slot="alert"
      role="alert"
      className={cn(
        "grid grid-cols-[auto_1fr] items-start gap-x-3 gap-y-1 rounded-lg border border-destructive/40 bg-card p-4",
        "text-sm text-destructive [&>svg]:mt-0.5 [&>svg]:size-4",
        className,
      )}
      {...props}
    />
  );
}

export function AlertTitle({ className, ...props }: ComponentProps<"p">) {
  return <p data-slot="alert-title" className={cn("col-start-2 font-medium", className)} {...props} />;
}

export function AlertDescription({ className, ...props }: ComponentProps<"div">) {
  return (
    <div data-slot="alert-description" className={cn("col-start-2 text-muted-foreground", className)} {...props} />
  );
}
