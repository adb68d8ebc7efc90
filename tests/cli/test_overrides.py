"""Overrides: a word for each, the same in options, files and results."""

from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.spec.intervention import RANDOM, SHUFFLED, Intervention
from dualpath_cli.spec.intervention import parse_overrides as parse

PERMILLE = st.integers(0, 1000).map(lambda n: n / 1000)
FIELDS = {
    "loops": st.integers(1, 99),
    "gates": st.one_of(st.tuples(PERMILLE, PERMILLE), st.just(SHUFFLED)),
    "halting": PERMILLE,
    "skip": PERMILLE,
    "kv_slots": st.integers(1, 9),
    "experts": st.integers(1, 9) | st.just(RANDOM),
}


@st.composite
def interventions(draw: st.DrawFn) -> Intervention:
    """Any intervention, in any layers, or gates of a class of tokens."""
    names = draw(st.sets(st.sampled_from(sorted(FIELDS))))
    chosen = {name: draw(FIELDS[name]) for name in names}
    if SHUFFLED in chosen.values() or RANDOM in chosen.values():
        chosen.pop("kv_slots", None)
        chosen["seed"] = draw(st.integers(0, 99))
    elif names == {"gates"}:
        chosen["tokens"] = draw(st.sampled_from([None, "verbs", "random-as-verbs:3"]))
    if chosen:
        layers = draw(st.none() | st.sets(st.integers(0, 30), min_size=1))
        chosen["layers"] = layers and tuple(sorted(layers))
    return Intervention(**chosen)


@given(interventions(), st.randoms())
def test_the_name_of_an_intervention_gives_it_back_in_any_order(change, order):
    words = change.name.split()
    order.shuffle(words)
    for written in ([change.name], words):
        assert (parse(written) or Intervention()) == change
