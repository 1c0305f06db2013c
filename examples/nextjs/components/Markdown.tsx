import { code } from "@streamdown/code";
import { type Components, Streamdown, defaultRehypePlugins } from "streamdown";

// A model's output must load nothing by itself: without `raw` HTML stays text, and images are links.
const { raw, ...safePlugins } = defaultRehypePlugins;
const rehypePlugins = Object.values(safePlugins);
const components: Components = {
  img: ({ src, alt }) => (
    <a className="underline" href={typeof src === "string" ? src : undefined} target="_blank" rel="noreferrer">
      {alt || "Image"}
    </a>
  ),
};
const plugins = { code };
const linkSafety = { enabled: false };

/** An answer as Markdown, also while it is being written. */
export function Markdown({ text, streaming }: { text: string; streaming: boolean }) {
  return (
    <Streamdown
      className="wrap-anywhere"
      components={components}
      isAnimating={streaming}
      lineNumbers={false}
      linkSafety={linkSafety}
      plugins={plugins}
      rehypePlugins={rehypePlugins}
    >
      {text}
    </Streamdown>
  );
}
