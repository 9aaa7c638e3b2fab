// What each posterior believes about the drawing: bars, numbers and a needle.

const CLASSES = 10, MOST_ENTROPY = Math.log(CLASSES);
const TICKS = [0, 0.1, 0.5, 1, 2];
// Shares of the test digits that are surer, from which a drawing counts as unusual and as unseen.
const UNUSUAL = 0.8, UNSEEN = 0.95;
const KINDS = { digit: "test digits", letter: "letters" };

const percent = (share) => `${Math.round(100 * share)} %`;
// Entropies are mostly near zero, where a square root makes room.
const along = (nats) => Math.sqrt(Math.min(Math.max(nats / MOST_ENTROPY, 0), 1));

// An element with a class, text and children.
function make(tag, name, content = []) {
  const one = document.createElement(tag);
  one.className = name;
  one.append(...(Array.isArray(content) ? content : [content]));
  return one;
}

// The card of one posterior; show(belief) brings it up to date.
class Card {
  constructor(row) {
    this.row = row;
    this.fills = [], this.whiskers = [], this.labels = [];
    this.answer = make("span", "answer");
    this.verdict = make("p", "verdict");
    this.numbers = make("p", "numbers");
    this.needle = make("div", "needle");
    const heading = make("h4", "", [make("span", "dot"), row.title, this.answer]);
    const gauge = make("div", "gauge", [...this.#strips(), this.needle, this.#axis()]);
    this.element = make("article", "belief", [heading, this.#bars(), this.verdict, gauge, this.numbers]);
    this.element.dataset.title = row.title;
    // Black is for white pages; the text's colour is for all.
    this.element.style.setProperty("--mark", row.colour === "#000000" ? "var(--text)" : row.colour);
  }

  #bars() {
    const bars = make("div", "bars");
    for (let c = 0; c < CLASSES; c++) {
      this.fills.push(make("div", "fill"));
      this.whiskers.push(make("div", "whisker"));
      this.labels.push(make("span", "class", String(c)));
      const bar = make("div", "bar", [this.fills[c], this.whiskers[c]]);
      bars.append(make("div", "column", [bar, this.labels[c]]));
    }
    bars.setAttribute("aria-hidden", "true"); // the numbers below say it in words
    return bars;
  }

  // Where the middle 90 % and the middle half of known images lie, and their median.
  #strips() {
    return Object.entries(KINDS).map(([kind, name]) => {
      const [low, first, middle, third, high] = [0.05, 0.25, 0.5, 0.75, 0.95]
        .map((level) => along(quantile(this.row.entropies[kind], level)));
      const part = (name, left, right) => {
        const one = make("div", name);
        one.style.left = `${100 * left}%`;
        if (right !== undefined) one.style.width = `${100 * (right - left)}%`;
        return one;
      };
      const track = make("div", "track", [part("wide", low, high), part("half", first, third), part("median", middle)]);
      return make("div", `strip ${kind}`, [make("span", "kind", name), track]);
    });
  }

  #axis() {
    const ticks = TICKS.map((nats) => {
      const tick = make("span", "tick", String(nats));
      tick.style.left = `${100 * along(nats)}%`;
      return tick;
    });
    return make("div", "axis", [make("span", "kind", "nats"), make("div", "track", ticks)]);
  }

  // Belief is null while there is nothing to believe.
  show(belief) {
    this.element.classList.toggle("idle", belief === null);
    if (belief === null) {
      this.answer.textContent = this.numbers.textContent = "";
      this.verdict.textContent = "waits for a drawing";
      return;
    }
    belief.mean.forEach((mean, c) => {
      this.fills[c].style.height = `${100 * mean}%`;
      this.whiskers[c].style.bottom = `${100 * belief.low[c]}%`;
      this.whiskers[c].style.height = `${100 * (belief.high[c] - belief.low[c])}%`;
      this.labels[c].classList.toggle("likeliest", c === belief.top);
    });
    this.needle.style.setProperty("--share", along(belief.entropy));
    this.answer.textContent = `${belief.top} · ${percent(belief.mean[belief.top])}`;
    this.verdict.textContent = belief.verdict;
    const disagreement = this.row.draws > 1 ? `${belief.disagreement.toFixed(2)} nats` : "none, as it has one draw";
    this.numbers.textContent =
      `Entropy ${belief.entropy.toFixed(2)} nats; disagreement ${disagreement}. ` +
      `More doubtful than ${percent(belief.shares.digit)} of test digits and ${percent(belief.shares.letter)} of letters.`;
  }
}

// A belief with what the page says about it.
function judged(row, belief) {
  const shares = Object.fromEntries(
    Object.keys(KINDS).map((kind) => [kind, shareBelow(row.entropies[kind], belief.entropy)]));
  const verdict =
    shares.digit > UNSEEN ? "I have not seen this" : shares.digit > UNUSUAL ? "unusual" : "looks familiar";
  return { ...belief, shares, verdict, top: belief.mean.indexOf(Math.max(...belief.mean)) };
}

// What all posteriors believe, for readers who hear the page.
function summary(rows, beliefs) {
  const each = rows.map((row, i) =>
    `${row.title}: ${beliefs[i].top}, ${percent(beliefs[i].mean[beliefs[i].top])}, ${beliefs[i].verdict}`);
  const unseen = beliefs.filter((one) => one.shares.digit > UNSEEN).length;
  return `${unseen} of ${rows.length} posteriors say that they have not seen this. ${each.join(". ")}.`;
}
