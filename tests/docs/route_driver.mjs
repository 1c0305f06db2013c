// Calls the example's route handler as Next.js would: `node route_driver.mjs route.ts`, requests as JSON on standard input.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import ts from "typescript";

const source = readFileSync(process.argv[2], "utf8");
const compilerOptions = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2023 };
const compiled = join(process.cwd(), "route.mjs");
writeFileSync(compiled, ts.transpileModule(source, { compilerOptions }).outputText);
const route = await import(pathToFileURL(compiled));

const answers = [];
for (const { method, path, headers, body } of JSON.parse(readFileSync(0, "utf8"))) {
  const request = new Request(`http://localhost:3000/api${path}`, { method, headers, body });
  const segments = path.split("?")[0].split("/").filter(Boolean);
  const response = await route[method](request, { params: Promise.resolve({ path: segments }) });
  answers.push({ status: response.status, headers: Object.fromEntries(response.headers), body: await response.text() });
}
console.log(JSON.stringify(answers));
