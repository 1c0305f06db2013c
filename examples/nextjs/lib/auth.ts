/**
 * The headers that say who calls. `make run` needs none. A stack deployed with `AuthMode: jwt` needs an access token
 * of your issuer: return it from `token`, fresh for each request.
 */
export async function authHeaders(): Promise<Record<string, string>> {
  const bearer = await token();
  return bearer ? { authorization: `Bearer ${bearer}` } : {};
}

async function token(): Promise<string | undefined> {
  return undefined;
}
