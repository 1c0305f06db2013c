export { common, createLowlight } from "lowlight";
export { default as MarkdownIt } from "markdown-it";
