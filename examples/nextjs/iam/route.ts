import { defaultProvider } from "@aws-sdk/credential-provider-node";
import { AwsClient } from "aws4fetch";

/**
 * The way to a stack with `AuthMode: iam`: this server signs, and names the user of its own session.
 *
 * Copy it to `app/api/[...path]/route.ts` and say in `userOf` who the user is. OMNIAGENT_CHAT_URL and
 * OMNIAGENT_SESSIONS_URL are the stack's outputs ChatUrl and SessionsUrl. The role that this server runs under needs the
 * policy of the output ChatInvokePolicy. The page's addresses are then /api: NEXT_PUBLIC_CHAT_URL=/api and
 * NEXT_PUBLIC_SESSIONS_URL=/api.
 */
export const dynamic = "force-dynamic";
export const maxDuration = 300;

/** The user of your session, by an id that never changes. Nobody is signed in: undefined. */
async function userOf(request: Request): Promise<string | undefined> {
  // With Auth.js: return (await auth())?.user?.id. With Clerk: return (await auth()).userId ?? undefined.
  throw new Error("iam/route.ts: write userOf, which says who the user of a request is");
}

type Context = { params: Promise<{ path: string[] }> };

async function forward(request: Request, { params }: Context): Promise<Response> {
  // The browser sends the session's cookie for any page: only your own may act with it.
  if (!isOwnPage(request)) return refusal(403, "forbidden", "Call from the page itself.");
  const user = await userOf(request);
  if (!user) return refusal(401, "unauthenticated", "Sign in first.");
  const { path } = await params;
  const target = new URL(path.map(encodeURIComponent).join("/"), base(path[0] === "chat"));
  target.search = new URL(request.url).search;
  // Only what the stack needs. A page's own x-user-id ends here.
  const headers = new Headers({ "x-user-id": user });
  for (const name of ["content-type", "x-ai-sdk"]) {
    const value = request.headers.get(name);
    if (value) headers.set(name, value);
  }
  const body = request.method === "GET" ? undefined : await request.arrayBuffer();
  const signed = await (await aws()).sign(target, { method: request.method, headers, ...(body?.byteLength && { body }) });
  // A user who leaves closes this connection; the answer goes on, and is found again by a resume.
  const response = await fetch(signed, { cache: "no-store", redirect: "manual", signal: request.signal });
  // The body is passed on as it comes.
  return new Response(response.body, { status: response.status, headers: passed(response.headers) });
}

export { forward as DELETE, forward as GET, forward as PATCH, forward as POST, forward as PUT };

/** The SDK's chain: environment, SSO profile, container (ECS), instance (EC2). It caches and refreshes. */
const credentials = defaultProvider();

async function aws(): Promise<AwsClient> {
  return new AwsClient({
    ...(await credentials()),
    region: setting("AWS_REGION"),
    // A Function URL. Behind API Gateway: execute-api.
    service: process.env.OMNIAGENT_SERVICE ?? "lambda",
    retries: 0,
  });
}

/** Whether a page of this server sent the request. Old browsers send no Sec-Fetch-Site, but an Origin. */
function isOwnPage(request: Request): boolean {
  const site = request.headers.get("sec-fetch-site");
  if (site) return site === "same-origin";
  const origin = request.headers.get("origin");
  if (origin) return URL.canParse(origin) && new URL(origin).host === request.headers.get("host");
  return request.method === "GET";
}

function base(isChat: boolean): string {
  const url = setting(isChat ? "OMNIAGENT_CHAT_URL" : "OMNIAGENT_SESSIONS_URL");
  return url.endsWith("/") ? url : `${url}/`;
}

function setting(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}

/** Headers of a body that was decoded on the way, or of a connection, are not the answer's. */
function passed(headers: Headers): Headers {
  const kept = new Headers(headers);
  for (const name of ["connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding"]) {
    kept.delete(name);
  }
  return kept;
}

function refusal(status: number, code: string, detail: string): Response {
  const headers = { "content-type": "application/problem+json" };
  return new Response(JSON.stringify({ type: "about:blank", title: "Refused", status, detail, code }), {
    status,
    headers,
  });
}
