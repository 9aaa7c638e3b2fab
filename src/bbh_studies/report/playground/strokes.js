// From strokes to the 8 × 8 numbers that the networks see, as far as the data set tells how it was
// made: every digit fills its 32 × 32 pixels from top to bottom and about three quarters of them
// from side to side, pixels are on or off, and a number counts those of a block of 4 × 4.

const FINE = 32, BLOCK = 4, SIDE = 8;
const WIDTH = 24; // columns that a digit takes, of 32
const STRETCH = 1.25; // the most by which one direction is enlarged more than the other
const PEN = 0.092; // radius over the larger extent: as much ink as digits of the data set have
const SMALLEST = 0.12; // part of the board; a dot is not enlarged until it fills the image

function distance(x, y, [ax, ay], [bx, by]) {
  const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy;
  const along = length ? Math.min(Math.max(((x - ax) * dx + (y - ay) * dy) / length, 0), 1) : 0;
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

// Strokes are lists of points [x, y], from 0 to 1 on the board. Returns 64 numbers from 0 to 1.
function pixelsOf(strokes) {
  const points = strokes.flat(), pixels = new Float32Array(SIDE * SIDE);
  if (!points.length) return pixels;
  const segments = strokes.flatMap((stroke) =>
    stroke.map((point, i) => [stroke[Math.max(i - 1, 0)], point]));
  const [left, top] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
  const [right, bottom] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
  const pen = PEN * Math.max(right - left, bottom - top, SMALLEST);
  let down = FINE / Math.max(bottom - top + 2 * pen, SMALLEST);
  let across = WIDTH / Math.max(right - left + 2 * pen, SMALLEST / 2);
  across = Math.min(across, STRETCH * down);
  down = Math.min(down, STRETCH * across);
  const [middleX, middleY] = [(left + right) / 2, (top + bottom) / 2];
  for (let row = 0; row < FINE; row++)
    for (let column = 0; column < FINE; column++) {
      const x = middleX + (column + 0.5 - FINE / 2) / across;
      const y = middleY + (row + 0.5 - FINE / 2) / down;
      if (segments.some(([a, b]) => distance(x, y, a, b) <= pen))
        pixels[Math.floor(row / BLOCK) * SIDE + Math.floor(column / BLOCK)] += 1 / (BLOCK * BLOCK);
    }
  return pixels;
}
