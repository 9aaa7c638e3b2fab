// Brings the board and the beliefs together.

const QUIET = 500; // milliseconds without a change before the summary is read out

function startDigits(section, data) {
  const find = (name) => section.querySelector(`[data-part="${name}"]`);
  const cards = data.rows.map((row) => new Card(row));
  find("beliefs").append(...cards.map((card) => card.element));
  const weights = data.rows.map((row) => halves(row.weights));
  const examples = { digit: [], letter: [] };
  for (const kind of Object.keys(examples))
    examples[kind] = data.examples[kind].map((text) =>
      Float32Array.from(fromBase64(text), (level) => level / data.levels));
  let beliefs = null, waiting = false, timer = 0;

  const believe = (pixels) =>
    data.rows.map((row, i) => judged(row, beliefOf(drawsOf(data.layers, weights[i], pixels, data.side))));

  function update() {
    waiting = false;
    beliefs = board.isEmpty ? null : believe(board.pixels);
    cards.forEach((card, i) => card.show(beliefs && beliefs[i]));
    const seen = find("seen"), context = seen.getContext("2d");
    context.clearRect(0, 0, seen.width, seen.height);
    context.fillStyle = getComputedStyle(seen).color;
    paintPixels(context, board.pixels, seen.width);
    clearTimeout(timer);
    timer = setTimeout(() => {
      find("summary").textContent = beliefs ? summary(data.rows, beliefs) : "The board is empty.";
    }, QUIET);
  }

  const board = new Board(find("board"), () => {
    if (!waiting) requestAnimationFrame(update);
    waiting = true;
  });
  let shown = 0;
  const showExample = (kind) => board.show(examples[kind][shown++ % examples[kind].length]);
  for (const [name, action] of Object.entries({
    clear: () => board.clear(),
    undo: () => board.undo(),
    digit: () => showExample("digit"),
    letter: () => showExample("letter"),
  })) find(name).addEventListener("click", action);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  showExample("digit");
  return { pixels: () => Array.from(board.pixels), beliefs: () => beliefs, believe };
}

// For the curious, and for tests: pixels and beliefs as numbers.
const playground = JSON.parse(document.getElementById("playground-data").textContent);
window.bbhPlayground = startDigits(document.getElementById("playground-digits"), playground.digits);
startNoise(document.getElementById("playground-noise"), playground.noise);
