/** Light, dark, or as the system says. Loaded before the page is drawn, so that it is drawn once. */

(() => {
  const KEY = "omniagent.theme";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function apply() {
    const chosen = localStorage.getItem(KEY);
    root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  }

  dark.addEventListener("change", apply);
  addEventListener("omniagent:toggle-theme", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    // What the system says anyway is not a choice: the page follows the system again.
    if ((next === "dark") === dark.matches) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    apply();
  });
  apply();
})();
