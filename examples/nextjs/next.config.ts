import type { NextConfig } from "next";

const config: NextConfig = {
  reactStrictMode: true,
  // Without this Next.js takes the nearest lock file above for the root of the project.
  turbopack: { root: import.meta.dirname },
};

export default config;
