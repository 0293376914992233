// Light, dark, or the system's theme. After a change, canvases have to be redrawn.

const THEMES = ["system", "light", "dark"];

function startTheme(repaint) {
  const button = byId("theme");
  const root = document.documentElement;
  let chosen = "system";
  const set = (theme) => {
    if (theme === "system") {
      delete root.dataset.theme;
    } else {
      root.dataset.theme = theme;
    }
    repaint();
  };
  button.addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    button.textContent = `Colours: ${chosen}`;
    set(chosen);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  addEventListener("beforeprint", () => set("light"));
  addEventListener("afterprint", () => set(chosen));
}
