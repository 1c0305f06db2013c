import { Problem } from "@/lib/problem";

/** What went wrong, in the server's words, and the id that finds it in the server's log. */
export function ErrorText({ error, onRetry }: { error: Error; onRetry?: () => unknown }) {
  return (
    <div className="error" role="alert">
      <p>{error instanceof TypeError ? "The server cannot be reached." : error.message}</p>
      {error instanceof Problem && error.requestId && <small>Request {error.requestId}</small>}
      {onRetry && <button onClick={() => void onRetry()}>Try again</button>}
    </div>
  );
}
