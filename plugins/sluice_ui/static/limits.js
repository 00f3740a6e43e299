// Adds a slider to each limit of the filters page, which moves its number and the line in its histogram.
// While it moves, the page says how many documents are beyond it, to the width of a bar; then it shows the exact effect.
// Without this script the number is typed, and a button shows the effect.
const STEPS = 500;

for (const limit of document.querySelectorAll(".limit")) {
  const number = limit.querySelector("input[type=text]");
  const log = "log" in limit.dataset;
  const scale = (value) => (log ? Math.log1p(Math.max(value, 0)) : value);
  const low = scale(Number(limit.dataset.low));
  const high = scale(Number(limit.dataset.high));
  const whole = !number.value.includes(".") && Number(limit.dataset.high) > 2;
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: STEPS, step: 1 });
  slider.setAttribute("aria-label", `${limit.querySelector("legend").textContent}, slider`);

  const show = () => {
    const place = Math.min(Math.max((scale(Number(number.value)) - low) / (high - low), 0), 1);
    for (const [at, drawing] of limit.querySelectorAll("svg").entries()) {
      const width = drawing.viewBox.baseVal.width;
      const line = drawing.querySelector(".asked") || drawing.querySelector(".own");
      if (line) for (const end of ["x1", "x2"]) line.setAttribute(end, place * width);
      let beyond = 0;
      for (const bar of drawing.querySelectorAll("rect")) {
        const middle = Number(bar.getAttribute("x")) + 0.5;
        const gone = limit.dataset.side === "least" ? middle < place * width : middle > place * width;
        bar.setAttribute("class", gone ? "gone" : "stays");
        if (gone) beyond += Number(bar.dataset.count);
      }
      const tried = number.value === number.dataset.own ? "" : `; about ${beyond.toLocaleString("en")} beyond ${number.value}`;
      limit.querySelectorAll(".tried")[at].textContent = tried;
    }
    return place;
  };
  const follow = () => {
    if (number.value !== "") slider.value = Math.round(show() * STEPS);
  };
  slider.addEventListener("input", () => {
    const at = low + (slider.value / STEPS) * (high - low);
    const value = log ? Math.expm1(at) : at;
    number.value = whole ? Math.round(value) : Number(value.toPrecision(3));
    show();
  });
  number.addEventListener("input", follow);
  for (const field of [slider, number]) field.addEventListener("change", effect);
  number.parentElement.before(slider);
  if (number.value === "") slider.value = limit.dataset.side === "least" ? 0 : STEPS;
  follow();
}

// The address gets the limits that differ from those of the version.
function changed() {
  const form = document.querySelector("form.limits");
  const query = new URLSearchParams(new FormData(form));
  for (const field of form.querySelectorAll("input[data-own]")) if (field.value === field.dataset.own) query.delete(field.name);
  return `${form.action}?${query}`;
}

// Shows the effect of the limits above the histograms, and puts them into the address, so that it can be sent.
let asked = 0;
async function effect() {
  const own = ++asked;
  const result = document.getElementById("result");
  result.setAttribute("aria-busy", "true");
  const address = changed();
  try {
    const page = new DOMParser().parseFromString(await (await fetch(address)).text(), "text/html");
    if (own !== asked) return;
    result.replaceChildren(...(page.getElementById("result") || page.querySelector("main")).childNodes);
    history.replaceState(null, "", address);
  } catch {
    // The page is left, or the server cannot be reached: the button asks again.
  }
  result.removeAttribute("aria-busy");
}

document.querySelector("form.limits").addEventListener("submit", (event) => {
  for (const field of event.target.querySelectorAll("input[data-own]")) field.disabled = field.value === field.dataset.own;
});
