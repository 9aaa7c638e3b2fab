// A posterior's draws of weights, and what they say about an image.
// Layers are those of the demonstration's network; a draw is one row of numbers, layer after layer.

// The numbers that half-precision bits stand for, as single-precision ones.
function fromHalves(bits) {
  const values = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    const exponent = (bits[i] >> 10) & 31, fraction = bits[i] & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
    values[i] = bits[i] >> 15 ? -size : size;
  }
  return values;
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// Half-precision numbers, stored with the low byte first on every machine.
function halves(text) {
  const bytes = fromBase64(text);
  const bits = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < bits.length; i++) bits[i] = bytes[2 * i] | (bytes[2 * i + 1] << 8);
  return fromHalves(bits);
}

// Images are {channels, side, values}, with values in the order channel, row, column.
const LAYERS = {
  convolution(image, layer, weights, start) {
    const { inputs, outputs, kernel } = layer;
    const side = image.side - kernel + 1, area = kernel * kernel;
    const biases = start + outputs * inputs * area;
    const values = new Float32Array(outputs * side * side);
    for (let o = 0; o < outputs; o++)
      for (let y = 0; y < side; y++)
        for (let x = 0; x < side; x++) {
          let sum = weights[biases + o];
          for (let c = 0; c < inputs; c++) {
            const tap = start + (o * inputs + c) * area, corner = c * image.side * image.side;
            for (let v = 0; v < kernel; v++)
              for (let u = 0; u < kernel; u++)
                sum += weights[tap + v * kernel + u] * image.values[corner + (y + v) * image.side + x + u];
          }
          values[(o * side + y) * side + x] = sum;
        }
    return { channels: outputs, side, values };
  },
  pooling(image, layer) {
    const { size } = layer, side = Math.floor(image.side / size);
    const values = new Float32Array(image.channels * side * side).fill(-Infinity);
    for (let c = 0; c < image.channels; c++)
      for (let y = 0; y < side * size; y++)
        for (let x = 0; x < side * size; x++) {
          const at = (c * side + Math.floor(y / size)) * side + Math.floor(x / size);
          values[at] = Math.max(values[at], image.values[(c * image.side + y) * image.side + x]);
        }
    return { channels: image.channels, side, values };
  },
  dense(image, layer, weights, start) {
    const { inputs, outputs } = layer;
    const values = new Float32Array(outputs);
    for (let o = 0; o < outputs; o++) {
      let sum = weights[start + outputs * inputs + o];
      for (let i = 0; i < inputs; i++) sum += weights[start + o * inputs + i] * image.values[i];
      values[o] = sum;
    }
    return { channels: outputs, side: 1, values };
  },
  relu(image) {
    return { ...image, values: image.values.map((value) => Math.max(value, 0)) };
  },
};

function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - largest));
  const total = powers.reduce((sum, one) => sum + one, 0);
  return powers.map((one) => one / total);
}

function entropy(probabilities) {
  return -probabilities.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
}

// The class probabilities that each draw gives to an image of pixels from 0 to 1.
function drawsOf(layers, weights, pixels, side) {
  const size = layers.reduce((sum, layer) => sum + layer.weights, 0);
  const found = [];
  for (let first = 0; first < weights.length; first += size) {
    let image = { channels: 1, side, values: pixels }, start = first;
    for (const layer of layers) {
      image = LAYERS[layer.kind](image, layer, weights, start);
      start += layer.weights;
    }
    found.push(softmax(image.values));
  }
  return found;
}

function quantile(ordered, level) {
  const at = level * (ordered.length - 1), below = Math.floor(at);
  const next = ordered[Math.min(below + 1, ordered.length - 1)];
  return ordered[below] + (at - below) * (next - ordered[below]);
}

// The share of ordered values that lie below a value.
function shareBelow(ordered, value) {
  return ordered.filter((one) => one < value).length / ordered.length;
}

// What a posterior believes: mean and spread over draws, and its doubt, all in nats.
function beliefOf(draws) {
  const classes = draws[0].map((_, c) => draws.map((one) => one[c]).sort((a, b) => a - b));
  const mean = classes.map((values) => values.reduce((sum, p) => sum + p, 0) / draws.length);
  const total = entropy(mean);
  const expected = draws.reduce((sum, one) => sum + entropy(one), 0) / draws.length;
  return {
    mean,
    low: classes.map((values) => quantile(values, 0.1)),
    high: classes.map((values) => quantile(values, 0.9)),
    entropy: total,
    disagreement: Math.max(total - expected, 0),
  };
}
