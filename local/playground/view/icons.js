/** The icons, as paths on a grid of 24. */

const PATHS = {
  alert: "M12 8v5M12 16.5v.01M10.3 4.2 2.9 17a2 2 0 0 0 1.7 3h14.8a2 2 0 0 0 1.7-3L13.7 4.2a2 2 0 0 0-3.4 0Z",
  arrowDown: "M12 5v14M6 13l6 6 6-6",
  arrowUp: "M12 19V5M6 11l6-6 6 6",
  beaker: "M9.5 4h5M10.5 4v6L5 19a1 1 0 0 0 1 1.5h12a1 1 0 0 0 1-1.5l-5.500-9V4M8 15h8",
  bolt: "M13 3 5 13.500h6L10 21l8-10.500h-6L13 3Z",
  check: "M5 12.5 10 17.5 19.5 7",
  chevron: "M9 6l6 6-6 6",
  chevronLeft: "M15 6l-6 6 6 6",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  gear: "M4 7h10M18 7h2M4 17h2M10 17h10M16 4.5v5M8 14.5v5",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5Z",
  panel: "M4 5h16v14H4zM15 5v14",
  pencil: "M4 20l1-4L16 5l3 3L8 19l-4 1ZM14 7l3 3",
  plus: "M12 5v14M5 12h14",
  refresh: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM16 16l4.5 4.5",
  spark: "M12 3.5l1.9 5.2 5.6 1.8-5.6 1.9L12 17.6l-1.9-5.2-5.6-1.9 5.6-1.8L12 3.5ZM18.5 16v4M16.5 18h4",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  stop: "M7 7h10v10H7z",
  thumbDown: "M7 4v10M7 14l4 7a2.2 2.2 0 0 0 2-2.4V15h5a2 2 0 0 0 2-2.4l-1.3-7A2 2 0 0 0 16.7 4H7M7 4H4v10h3",
  thumbUp: "M7 20V10M7 10l4-7a2.2 2.2 0 0 1 2 2.4V9h5a2 2 0 0 1 2 2.4l-1.3 7a2 2 0 0 1-2 1.6H7M7 20H4V10h3",
  tool: "M14.5 6.5a4 4 0 0 0-5.2 5.2L4 17l3 3 5.3-5.3a4 4 0 0 0 5.2-5.2L15 12l-3-3 2.5-2.5Z",
  trash: "M5 7h14M10 4h4M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  waterfall: "M4 6h7M7 11h9M12 16h8M4 20.5h16",
};

const SVG = "http://www.w3.org/2000/svg";

/**
 * An icon. It is decoration: what it stands on has a name of its own.
 * @param {keyof typeof PATHS} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
