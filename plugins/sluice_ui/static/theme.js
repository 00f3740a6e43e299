// The theme of Airflow, whose document frames these pages, has the class "dark" or "light"; outside of it, the setting
// that Airflow stores, and else that of the system, which style.css reads.
const follow = () => {
  let outside = null;
  try {
    outside = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    // Framed by another site's page: the system's theme.
  }
  const stored = outside ? null : localStorage.getItem("theme");
  const dark = outside ? outside.classList.contains("dark") : stored === "dark";
  const light = outside ? outside.classList.contains("light") : stored === "light";
  document.documentElement.dataset.theme = dark ? "dark" : light ? "light" : "";
  document.dispatchEvent(new Event("theme"));
  return outside;
};
const outside = follow();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
if (outside) new MutationObserver(follow).observe(outside, { attributeFilter: ["class"] });
