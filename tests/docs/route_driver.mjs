// Calls the example's route handler as Next.js would: `node route_driver.mjs route.ts`, requests as JSON on standard input.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import ts from "typescript";

// A team writes `userOf`; here it is whoever the page claims to be.
const unwritten = /async function userOf[^]*?\n}\n/;
const written = 'async function userOf(request) { return request.headers.get("x-demo-user") ?? undefined; }\n';
const shipped = readFileSync(process.argv[2], "utf8");
const source = process.argv[3] === "as-shipped" ? shipped : shipped.replace(unwritten, written);
const compilerOptions = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2023 };
const compiled = join(process.cwd(), "route.mjs");
writeFileSync(compiled, ts.transpileModule(source, { compilerOptions }).outputText);
const route = await import(pathToFileURL(compiled));

const answers = [];
for (const { method, path, headers, body } of JSON.parse(readFileSync(0, "utf8"))) {
  const request = new Request(`http://localhost:3000/api${path}`, { method, headers, body });
  const segments = path.split("?")[0].split("/").filter(Boolean);
  try {
    const response = await route[method](request, { params: Promise.resolve({ path: segments }) });
    const body = await response.text();
    answers.push({ status: response.status, headers: Object.fromEntries(response.headers), body });
  } catch (error) {
    answers.push({ error: error.message });
  }
}
console.log(JSON.stringify(answers));
