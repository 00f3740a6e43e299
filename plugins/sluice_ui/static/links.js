// Airflow shows these pages in a sandboxed frame, which may not open windows, so a link to another site would do nothing.
// Airflow's own document is not sandboxed and of the same origin: the click is repeated there.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[target="_blank"]');
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outside = window.parent.document.createElement("a");
  Object.assign(outside, { href: link.href, target: "_blank", rel: link.rel });
  outside.click();
});
