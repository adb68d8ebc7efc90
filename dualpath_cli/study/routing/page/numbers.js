// Numbers, as page.py wrote them.

const $ = (id) => document.getElementById(id), root = document.documentElement;
const make = (tag, set = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), set);
  made.append(...inside);
  return made;
};
const { layers, reach: widest, tags, columns: count, examples, models } =
  JSON.parse($("head").textContent);
const rows = layers.length + 1;

const letters = atob($("packed").textContent);
const stream = new Blob([Uint8Array.from(letters, (letter) => letter.charCodeAt(0))]).stream();
const bytes = new Uint8Array(
  await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
const total = examples.reduce((sum, e) => sum + e.count, 0);
const texts = JSON.parse(new TextDecoder().decode(bytes.subarray(3 * count * total)));

const NONE = 2 ** 24 - 1;
const code = (column, i) => {
  const at = 3 * column * total + i;
  return bytes[at] << 16 | bytes[at + total] << 8 | bytes[at + 2 * total];
};
const short = (column, i) => { const c = code(column, i); return c === NONE ? NaN : c / 1000; };
const long = (column, i) => {
  const c = code(column, i);
  if (c >= NONE - 1 || c === 0) return c === NONE ? NaN : c && Infinity;
  return Number(`${100 + (c - 1) % 900}e${Math.floor((c - 1) / 900) - 147}`);
};
const cost = (column, i) => {
  const c = code(column, i);
  return c === NONE ? NaN : (c - 2 ** 15) / 100;
};

// The first column of each thing: parts of speech, then what each model made of the tokens.
let columnsSoFar = 1;
const take = (n) => (columnsSoFar += n, columnsSoFar - n);
for (const model of models) {
  model.loops = Math.max(...model.steps);  // a layer of fewer steps repeats its last state
  model.states = model.loops + 3;  // of a layer: its input, each loop, the wide path, its output
  model.at = { nats: take(1) };
  for (const name of ["deep", "wide", "cosine", "share"]) model.at[name] = take(rows);
  for (const name of ["steps", "stepCosines"]) model.at[name] = take(rows * model.loops);
  for (const name of ["sizeDeep", "sizeWide", "loops"]) model.at[name] = take(rows);
  model.at.stepSizes = take(rows * model.loops);
  const places = model.chosen * layers.length;  // the token's experts in each layer
  model.at.experts = take(places), model.at.expertWeights = take(places);
  if (model.said) {
    model.at.next = take(1), model.at.nextNats = take(1);
    model.at.ids = take(3 * model.states * layers.length);
    model.at.shares = take(3 * model.states * layers.length);
  }
  if (model.forced.length) model.at.costs = take(rows * model.forced.length);
}

// What a model made of a sequence: `first` is the place of its first token among all.
let tokensSoFar = 0;
for (const [n, e] of examples.entries()) {
  e.first = tokensSoFar, tokensSoFar += e.count, e.tokens = texts.tokens[n];
}
const readings = models.map((model) =>
  examples.map((e, n) => ({ ...e, model, means: model.means[n].map((mean) => mean ?? NaN) })));

// What a state says next, likeliest first: [text, whole percent] each. Codes refer to the state
// before, so that they are followed back to the first one.
const saidBy = (e, token, state) => {
  const { ids, shares } = e.model.at, i = e.first + token;
  const place = (at, rank) => {
    const c = code(ids + 3 * at + rank, i);
    return c < 3 && at ? place(at - 1, (rank + c) % 3) : c - 3;
  };
  const percent = (rank) => {
    let sum = 0;
    for (let at = 0; at <= state; at++) sum += code(shares + 3 * at + rank, i);
    return sum % 128;
  };
  return [0, 1, 2].map((rank) => [texts.said[place(state, rank)], percent(rank)]);
};
const nextOf = (e, token) => {
  const c = code(e.model.at.next, e.first + token);
  return c ? texts.said[c - 1] : null;
};
const costOf = (e, token, row, what) =>
  cost(e.model.at.costs + row * e.model.forced.length + what, e.first + token);

const fixed = (v) => Number.isNaN(v) ? "–" : v.toFixed(3).replace("-", "−");
const three = (v) => Number.isNaN(v) ? "–" : v === Infinity ? "∞" : v === 0 ? "0"
  : v >= 1000 && v < 1e6 ? v.toLocaleString("en") : v.toPrecision(3);
const signed = (v) => Number.isNaN(v) ? "–" : v === 0 ? "0.00"
  : `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(2)}`;

// Each read-out: its symbol, how it is read and written, and for colours its name, place from 0
// to 1 (one half is neutral) and the labels of the legend.
const at = (name, read) => (e, token, row) => read(e.model.at[name] + row, e.first + token);
const ofStep = (name, read) => (e, token, row, k) =>
  read(e.model.at[name] + k * rows + row, e.first + token);
const weight = ofStep("steps", short), stepSize = ofStep("stepSizes", long);
const stepCosine = (...place) => ofStep("stepCosines", short)(...place) - 1;
// The experts of a token in a layer, as [number, weight] each; none for the mean of all layers.
const expertsOf = (e, token, row) => {
  const { chosen, at: { experts, expertWeights } } = e.model;
  if (!row) return [];
  const found = Array.from({ length: chosen }, (_, c) => (row - 1) * chosen + c);
  return found.map((c) => [code(experts + c, e.first + token),
    short(expertWeights + c, e.first + token)]).filter(([n]) => n !== NONE).sort((a, b) => b[1] - a[1]);
};
const loadsOf = (e, row) => {  // how many tokens of the sequence took each expert of the layer
  const counts = Array(e.model.experts[row - 1]).fill(0);
  for (let i = 0; i < e.count; i++) for (const [n] of expertsOf(e, i, row)) counts[n]++;
  return counts;
};
const half = (v) => 0.5 + Math.min(v, 1) / 2;
const reach = () => $("full").checked ? 0.5 : widest;
const mostLoops = Math.max(...models.map((model) => model.loops));
const FIELDS = {
  share: ["ρ<sub>d</sub>", at("share", short), fixed, "deep share",
    (v) => Math.min(Math.max(0.5 + (v - 0.5) / (2 * reach()), 0), 1), "", "½", ""],
  loops: ["loops", at("loops", long), three, "expected loops",
    (v) => half(mostLoops > 1 ? (v - 1) / (mostLoops - 1) : 0), "1", "", String(mostLoops)],
  deep: ["g<sub>d</sub>", at("deep", short), fixed, "gate g_d", half, "0", "", "1"],
  wide: ["g<sub>w</sub>", at("wide", short), fixed, "gate g_w", half, "0", "", "1"],
  sizeDeep: ["‖Δ<sub>d</sub>‖", at("sizeDeep", long), three],
  sizeWide: ["‖Δ<sub>w</sub>‖", at("sizeWide", long), three],
  cosine: ["cos", (...place) => at("cosine", short)(...place) - 1, fixed, "cosine",
    (v) => (v + 1) / 2, "−1", "0", "1"],
  ...models.some((model) => model.chosen) && { experts: ["experts", expertsOf,
    (list) => list.map(([n, w]) => `${n} (${fixed(w)})`).join(", ") || "–"] },
  nats: ["loss, nats", (e, token) => long(e.model.at.nats, e.first + token), three, "loss",
    (v) => half(v / 8), "0 nats", "", "8 or more"],
};
const read = (name, e, token, row) => FIELDS[name][2](FIELDS[name][1](e, token, row));
const where = (row) => row ? `layer ${layers[row - 1]}`
  : layers.length > 1 ? `mean of ${layers.length} layers` : "mean of all layers";
