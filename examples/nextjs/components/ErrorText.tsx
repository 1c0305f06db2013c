import { CircleAlert } from "lucide-react";
import { Problem } from "@/lib/problem";
import { Alert, AlertDescription, AlertTitle } from "./ui/alert";
import { Button } from "./ui/button";

type Props = { className?: string; error: Error; onRetry?: () => unknown };

/** What went wrong, in the server's words, and the id that finds it in the server's log. */
export function ErrorText({ className, error, onRetry }: Props) {
  return (
    <Alert className={className}>
      <CircleAlert />
      <AlertTitle>{error instanceof TypeError ? "The server cannot be reached." : error.message}</AlertTitle>
      {error instanceof Problem && error.requestId && <AlertDescription>Request {error.requestId}</AlertDescription>}
      {onRetry && (
        <Button className="col-start-2 mt-2 w-fit" variant="outline" size="sm" onClick={() => void onRetry()}>
          Try again
        </Button>
      )}
    </Alert>
  );
}
