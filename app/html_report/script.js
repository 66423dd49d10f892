"use strict";
// Draws the figures in the screen's colour scheme, redraws them when it changes, and prints in light colours.
(() => {
  const specs = document.getElementById("figures").textContent;
  const dark = matchMedia("screen and (prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 700px)");
  const config = {displaylogo: false, displayModeBar: false, typesetMath: false, responsive: true};
  const plots = [...document.querySelectorAll(".plot")];

  function put(target, path, value) {
    const last = path[path.length - 1];
    path.slice(0, -1).reduce((at, key) => at[key], target)[last] = value;
  }

  // For a narrow screen: room for a legend with its entries below each other, fewer labels, shorter bars.
  function fit(figure) {
    const {data, layout} = figure;
    if (data.length > 2) layout.height += 100;
    if (layout.xaxis?.nticks) layout.xaxis.nticks = Math.min(layout.xaxis.nticks, 8);
    if (layout.xaxis?.range) layout.xaxis.range[1] *= 1.15; // room for the totals at the ends of the bars
  }

  const paperWidth = 690, halfWidth = 335, paperHeight = 0.75;

  function draw(inDark, onPaper) {
    // Parsed again each time: Plotly keeps and modifies its arguments.
    const found = JSON.parse(specs);
    for (const plot of plots) {
      const {figure, dark: changes} = found[plot.id.slice("plot-".length)];
      if (inDark) changes.forEach(([path, value]) => put(figure, path, value));
      if (onPaper) {
        figure.layout.width = plot.closest(".columns") ? halfWidth : paperWidth;
        const least = figure.data.length > 3 ? 210 : 150; // three lines of a legend
        figure.layout.height = Math.max(least, Math.round(figure.layout.height * paperHeight));
      } else if (narrow.matches) fit(figure);
      plot.style.height = `${figure.layout.height}px`; // else a resize would make the figure as high as its empty frame
      plot.querySelector(".no-script")?.remove();
      Plotly.react(plot, figure.data, figure.layout, config);
      // Screen readers read the figure's description; they would read the drawing inside it letter by letter.
      for (const part of plot.children) part.setAttribute("aria-hidden", "true");
    }
  }

  draw(dark.matches);
  let printing = false;
  for (const query of [dark, narrow]) query.addEventListener("change", () => printing || draw(dark.matches));

  // On paper: a few pages. Figures are as wide as a page or half a page, and lower. Folded parts stay folded; the file
  // still holds them.
  addEventListener("beforeprint", () => {
    printing = true;
    draw(false, true);
  });
  addEventListener("afterprint", () => {
    printing = false;
    draw(dark.matches);
  });

  for (const button of document.querySelectorAll("button.copy")) {
    const code = document.getElementById(button.dataset.copies);
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
      setTimeout(() => { button.textContent = label; }, 2000);
    });
  }
})();
