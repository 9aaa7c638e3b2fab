// The board to draw on: with mouse, finger or pen, or with the keyboard.

const STEP = 1 / 32; // of the board, that an arrow key moves the pen
const INK = 0.1; // width of a line, as a part of the board

class Board {
  // Calls changed() after every change of what is drawn.
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    this.example = null; // pixels that are shown instead of strokes
    this.pen = [0.5, 0.25];
    this.isDown = false; // whether the keyboard's pen touches the board
    canvas.addEventListener("pointerdown", (event) => this.#touch(event));
    canvas.addEventListener("pointermove", (event) => this.#drag(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.paint());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  get pixels() {
    return this.example ?? pixelsOf(this.strokes);
  }

  get isEmpty() {
    return this.example === null && !this.strokes.length;
  }

  show(pixels) {
    [this.strokes, this.example, this.isDown] = [[], pixels, false];
    this.#update();
  }

  clear() {
    this.show(null);
  }

  undo() {
    this.example = null;
    this.isDown = false;
    this.strokes.pop();
    this.#update();
  }

  #update() {
    this.paint();
    this.changed();
  }

  #begin(point) {
    this.example = null;
    this.strokes.push([point]);
    this.#update();
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const inside = (value) => Math.min(Math.max(value, 0), 1);
    return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
  }

  #touch(event) {
    if (event.button !== 0) return;
    event.preventDefault(); // selects no text beside the board
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.isDown = false;
    this.#begin(this.#place(event));
  }

  #drag(event) {
    if (!this.canvas.hasPointerCapture(event.pointerId) || !this.strokes.length) return;
    const between = event.getCoalescedEvents?.() ?? [];
    for (const one of between.length ? between : [event]) this.strokes.at(-1).push(this.#place(one));
    this.pen = this.strokes.at(-1).at(-1);
    this.#update();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (move) {
      const inside = (value) => Math.min(Math.max(value, 0.05), 0.95);
      this.pen = this.pen.map((value, axis) => inside(value + STEP * move[axis]));
      if (this.isDown) this.strokes.at(-1).push(this.pen);
      this.isDown ? this.#update() : this.paint();
    } else if (event.key === " ") {
      this.isDown = !this.isDown;
      this.isDown ? this.#begin(this.pen) : this.paint();
    } else if (event.key === "Backspace") this.undo();
    else if (event.key === "Escape" || event.key === "Delete") this.clear();
    else return;
    event.preventDefault(); // the page must not scroll
  }

  paint() {
    const size = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (!size) return;
    if (this.canvas.width !== size) this.canvas.width = this.canvas.height = size;
    const context = this.canvas.getContext("2d"), style = getComputedStyle(this.canvas);
    context.clearRect(0, 0, size, size);
    context.strokeStyle = context.fillStyle = style.color;
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = INK * size;
    if (this.example) paintPixels(context, this.example, size);
    for (const stroke of this.strokes) {
      context.beginPath();
      for (const [x, y] of [stroke[0], ...stroke]) context.lineTo(x * size, y * size);
      context.stroke();
    }
    if (this.canvas.matches(":focus-visible")) this.#paintPen(context, size, style);
  }

  #paintPen(context, size, style) {
    const [x, y] = this.pen.map((value) => value * size);
    context.beginPath();
    context.arc(x, y, (INK / 2) * size, 0, 2 * Math.PI);
    context.lineWidth = 2 * devicePixelRatio;
    context.strokeStyle = style.getPropertyValue("--link");
    context.stroke();
    if (!this.isDown) return;
    context.fillStyle = style.getPropertyValue("--link");
    context.fill();
  }
}

// Paints pixels from 0 to 1 over a square, in the colour that the context fills with.
function paintPixels(context, pixels, size) {
  const side = Math.sqrt(pixels.length), edge = (i) => Math.round((i * size) / side);
  pixels.forEach((value, i) => {
    const [x, y] = [i % side, Math.floor(i / side)];
    context.globalAlpha = value;
    context.fillRect(edge(x), edge(y), edge(x + 1) - edge(x), edge(y + 1) - edge(y));
  });
  context.globalAlpha = 1;
}
