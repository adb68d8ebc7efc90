// What the model would have said next after each state of a layer, and what forcing would cost.

// States of a layer are its input, its loops, the wide path, its output; the answer is the
// likeliest next token. A loop is set against the state before it, all else against the input.
const stateOf = (e, l, s) => e.model.states * l + s;
const answerOf = (e, i, l, s) => saidBy(e, i, stateOf(e, l, s))[0][0];
const flipsIn = (e, i, l) =>
  e.model.said && answerOf(e, i, l, 0) !== answerOf(e, i, l, e.model.states - 1);
function statesShown(e, row) {
  const { states, loops, steps } = e.model, last = states - 1;
  if (!row) {
    const outputs = layers.map((n, l) => [`layer ${n}`, stateOf(e, l, last), stateOf(e, l, 0)]);
    return [["input", stateOf(e, 0, 0)], ...outputs];
  }
  const l = row - 1, state = (s) => stateOf(e, l, s);
  const ofLoops = Array.from({ length: steps[l] }, (_, k) =>
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
const early = models.map((model) => {
  const next = make("p", { className: "note" }), body = make("tbody");
  const caption = make("caption", { className: "unseen" }, "State, and its three likeliest tokens");
  if (model.said) $("early").append(...named(model), next, make("table", {}, caption, body));
  return { next, body };
});
function drawEarly(e, m, i) {
  const { next, body } = early[m];
  if (!models[m].said) return;
  if (!e) {
    next.textContent = "–";
    body.replaceChildren();
    return;
  }
  const came = nextOf(e, i), nats = three(long(e.model.at.nextNats, e.first + i));
  next.textContent = came === null ? "The text ends here."
    : `Really comes: ${visible(came)} (loss ${nats} nats)`;
  body.replaceChildren(...statesShown(e, state.row).map(([name, at, before]) => {
    const said = saidBy(e, i, at);
    const flips = before !== undefined && said[0][0] !== saidBy(e, i, before)[0][0];
    return make("tr", { className: flips ? "flips" : "" },
      make("th", { scope: "row" }, name), ...said.map((one, rank) =>
        cell(one, came, flips && rank === 0)));
  }));
}

const costs = models.map((model) => {
  const head = make("tr", {}, ...["forced", "this layer", "all layers"].map((name) =>
    make("th", { scope: "col" }, name)));
  const lines = model.forced.map((name) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td"), make("td")));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
  if (lines.length) $("costs").append(...named(model), table);
  return { table, lines };
});
function drawCosts(e, m, i) {
  costs[m].table.classList.toggle("no-layer", !state.row);
  costs[m].lines.forEach((line, what) => {
    const value = (row) => e ? signed(costOf(e, i, row, what)) : "–";
    line.children[1].textContent = state.row ? value(state.row) : "–";
    line.children[2].textContent = value(0);
  });
}
$("early").hidden = !models.some((model) => model.said);
$("costs").hidden = !models.some((model) => model.forced.length);
