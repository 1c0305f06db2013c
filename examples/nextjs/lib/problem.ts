/** A refusal of the server: `application/problem+json`. Its text is written for the user. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    readonly requestId?: string,
  ) {
    super(detail || title);
    this.name = "Problem";
  }

  static async from(response: Response): Promise<Problem> {
    const body: unknown = await response.json().catch(() => ({}));
    const text = (name: string) => {
      const value = typeof body === "object" && body !== null ? (body as Record<string, unknown>)[name] : undefined;
      return typeof value === "string" ? value : "";
    };
    const requestId = text("request_id") || response.headers.get("x-request-id") || undefined;
    const title = text("title") || `HTTP ${response.status}`;
    return new Problem(response.status, text("code"), title, text("detail"), requestId);
  }
}
