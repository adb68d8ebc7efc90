"""Words of `--intervention`: each is the intervention that has this name."""

import pytest

from dualpath_cli.generation.overrides import intervention_of
from dualpath_cli.intervention import Intervention


@pytest.mark.parametrize(
    "change",
    [
        Intervention(gates=(1.0, 0.0), layers=(0, 2)),
        Intervention(halting=0.1),
        Intervention(halting=0.25, halting_by="change"),
        Intervention(halting=2.0, halting_by="entropy", skip=0.2),
    ],
    ids=lambda change: change.name,
)
def test_the_name_of_an_intervention_gives_it_back(change: Intervention) -> None:
    assert intervention_of(None, change.name.split()) == change


def test_loops_shuffles_and_fields_of_other_options_are_put_together() -> None:
    words = ["gates=shuffled", "seed=7"]
    expected = Intervention(loops=3, gates="shuffled", seed=7, halting=0.5)
    assert intervention_of("3", words, {"halting": 0.5}) == expected
    assert intervention_of(None, []) is None
