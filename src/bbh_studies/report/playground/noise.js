// The toy regression for several noise levels. Nothing is trained here: the slider only stops at
// levels whose posteriors are stored, and the points move by the noise that it shows.

const FRAME = { width: 220, height: 170, limit: 250 };

function svg(tag, attributes, children = []) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

const startNoise = (section, data) => {
  const x = (value) => (FRAME.width * (value - data.grid[0])) / (data.grid.at(-1) - data.grid[0]);
  const y = (value) => (FRAME.height * (FRAME.limit - value)) / (2 * FRAME.limit);
  const line = (values) => values.map((value, i) => `${x(data.grid[i]).toFixed(1)},${y(value).toFixed(1)}`);

  function drawing(row, level) {
    const band = row.bands[data.levels[level]], sigma = data.levels[level];
    const parts = [svg("line", { class: "zero", x1: 0, x2: FRAME.width, y1: y(0), y2: y(0) })];
    if (band) {
      for (const width of [3, 2, 1]) {
        const [upper, lower] = [width, -width].map((k) => line(band.mean.map((m, i) => m + k * band.std[i])));
        parts.push(svg("polygon", { class: "band", points: [...upper, ...lower.reverse()].join(" ") }));
      }
      parts.push(svg("polyline", { class: "mean", points: line(band.mean).join(" ") }));
    }
    parts.push(svg("polyline", { class: "truth", points: line(data.grid.map((one) => one ** 3)).join(" ") }));
    data.inputs.forEach((input, i) =>
      parts.push(svg("circle", { class: "point", r: 2.2, cx: x(input), cy: y(input ** 3 + sigma * data.errors[i]) })));
    return parts;
  }

  const panels = data.rows.map((row) => {
    const picture = svg("svg", { viewBox: `0 0 ${FRAME.width} ${FRAME.height}`, role: "img" });
    const note = make("figcaption", "");
    const panel = make("figure", "noise-panel", [make("h4", "", row.title), picture, note]);
    panel.style.setProperty("--mark", row.colour === "#000000" ? "var(--text)" : row.colour);
    return { row, picture, note, panel };
  });
  section.querySelector('[data-part="panels"]').append(...panels.map((one) => one.panel));
  const slider = section.querySelector("input"), shown = section.querySelector("output");

  function update() {
    const level = Number(slider.value), words = `noise with a standard deviation of ${data.levels[level]}`;
    shown.textContent = `σ = ${data.levels[level]}`;
    slider.setAttribute("aria-valuetext", words);
    for (const { row, picture, note } of panels) {
      picture.replaceChildren(...drawing(row, level));
      const band = row.bands[data.levels[level]], end = band && Math.round(band.std.at(-1));
      note.textContent = band ? `spread at x = 6: ± ${end}` : "not on record for this noise";
      picture.setAttribute("aria-label", `${row.title}, ${words}: ${note.textContent}`);
    }
  }
  slider.max = data.levels.length - 1;
  slider.value = Math.max(data.levels.indexOf(9), 0); // the study's own level
  slider.addEventListener("input", update);
  update();
};
