// What Next.js itself declares in next-env.d.ts, which it writes on its first run.
declare module "*.css";
