// The model's prediction from each state of a layer, and the cost of forcing.

// States of a layer are its input, its loops, the wide path, its output; the answer is the
// likeliest next token. A loop is compared with the state before it, other states with the input.
const stateOf = (l, s) => states * l + s;
const answerOf = (e, i, l, s) => saidBy(e, i, stateOf(l, s))[0][0];
const flipsIn = (e, i, l) =>
  model.said && answerOf(e, i, l, 0) !== answerOf(e, i, l, states - 1);
function statesShown(row) {
  const last = states - 1;
  if (!row) {
    const outputs = layers.map((n, l) => [`layer ${n}`, stateOf(l, last), stateOf(l, 0)]);
    return [["input", stateOf(0, 0)], ...outputs];
  }
  const l = row - 1, state = (s) => stateOf(l, s);
  const ofLoops = Array.from({ length: model.steps[l] }, (_, k) =>
    [`loop ${k + 1}`, state(k + 1), state(k)]);
  return [["input", state(0)], ...ofLoops, ["wide", state(loops + 1), state(0)],
    ["output", state(last), state(0)]];
}
const cell = ([text, percent], next, flips) => {
  const word = make("span", { className: "said" }, visible(text));
  const td = make("td", { title: visible(text), className: text === next ? "came" : "" });
  if (flips) td.append(make("b", { className: "flip", ariaLabel: "flips to", role: "img" }, "⇄"));
  td.append(word, make("small", {}, percent ? `${percent} %` : "<1 %"));
  return td;
};
const next = make("p", { className: "note" }), body = make("tbody");
$("early").append(next, make("table", { ariaLabel: "States’ three likeliest tokens" }, body));
function drawEarly(e, i) {
  if (!model.said) return;
  const came = nextOf(e, i), nats = three(number("nextNats", e.first + i));
  next.textContent = came === null ? "The text ends here."
    : `Actual next token: ${visible(came)} (loss ${nats} nats)`;
  body.replaceChildren(...statesShown(state.row).map(([name, at, before]) => {
    const said = saidBy(e, i, at);
    const flips = before !== undefined && said[0][0] !== saidBy(e, i, before)[0][0];
    return make("tr", { className: flips ? "flips" : "" },
      make("th", { scope: "row" }, name), ...said.map((one, rank) =>
        cell(one, came, flips && rank === 0)));
  }));
}

const lines = model.forced.map((name) =>
  make("tr", {}, make("th", { scope: "row" }, name), make("td"), make("td")));
const costs = make("table", {}, make("thead", {}, make("tr", {},
  ...["forced", "this layer", "all layers"].map((name) => make("th", { scope: "col" }, name)))),
make("tbody", {}, ...lines));
$("costs").append(costs);
function drawCosts(e, i) {
  costs.classList.toggle("no-layer", !state.row);
  lines.forEach((line, what) => {
    const value = (row) => signed(costOf(e, i, row, what));
    line.children[1].textContent = state.row ? value(state.row) : "–";
    line.children[2].textContent = value(0);
  });
}
$("early").hidden = !model.said;
$("costs").hidden = !model.forced.length;
