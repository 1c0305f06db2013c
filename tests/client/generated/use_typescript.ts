// What a page does with types that openapi-typescript generated.
import createClient from "openapi-fetch";
import type { components, paths as ChatPaths } from "./chat.js";
import type { paths as SessionsPaths } from "./sessions.js";

const [url, sessionId] = process.argv.slice(2);
const chat = createClient<ChatPaths>({ baseUrl: url });
const sessions = createClient<SessionsPaths>({ baseUrl: url });

function textOf(event: components["schemas"]["StreamEvent"]): string {
  return event.type === "text-delta" && "delta" in event ? event.delta : "";
}

function check(holds: boolean, what: unknown) {
  if (!holds) throw new Error(JSON.stringify(what));
}

const { data, error } = await chat.POST("/chat", {
  params: { query: { stream: false } },
  body: { query: "[echo:Hello.]", session_id: sessionId },
});
check(data !== undefined && "text" in data && data.text === "Hello.", error);

const refused = await chat.POST("/chat", { body: { query: " ", session_id: sessionId } });
const code: string | undefined = refused.error?.code;
check(code === "invalid_request", refused);

const streamed = await chat.POST("/chat", { body: { query: "[echo:Again.]", session_id: sessionId }, parseAs: "text" });
const lines = String(streamed.data).split("\n").filter((line) => line.startsWith("data: {"));
check(lines.map((line) => textOf(JSON.parse(line.slice(6)))).join("") === "Again.", lines);

const path = { session_id: sessionId };
const listed = await sessions.GET("/sessions/{session_id}/messages", { params: { path } });
const part = listed.data?.messages[1].parts.at(-1);
check(part?.type === "text" && "text" in part && part.text === "Hello.", listed);
console.log("used");
