// Draws the charts of a page with Plotly, in the colors of style.css, and again when the theme changes.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const draw = () => {
  for (const chart of document.querySelectorAll(".chart")) {
    const { data, layout } = JSON.parse(chart.dataset.figure);
    const axis = { gridcolor: color("border"), zerolinecolor: color("quiet"), linecolor: color("border") };
    for (const trace of data) {
      if (trace.type === "sankey") {
        trace.node.color = trace.node.roles.map(color);
        trace.link.color = trace.link.roles.map((role) => color(`${role}-pale`));
      }
    }
    if (layout.height) chart.style.height = `${layout.height}px`;
    Plotly.react(
      chart,
      data,
      {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: color("text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
        colorway: ["accent", "good", "bad", "other"].map(color),
        margin: { l: 56, r: 16, t: 8, b: 40 },
        ...layout,
        xaxis: { ...axis, ...layout.xaxis },
        yaxis: { ...axis, ...layout.yaxis },
      },
      { displayModeBar: false, responsive: true },
    );
  }
};
draw();
document.addEventListener("theme", draw);
