"""What decides the numbers of a study, as earlier versions wrote it."""

from dualpath_cli.intervention import Intervention
from dualpath_cli.study.facts import override_facts


def test_passes_of_earlier_versions_are_found():
    """They are named by a hash of this, in which `halting_by` was a choice."""
    assert override_facts(Intervention(halting=0.1)) == {
        "loops": None, "gates": None, "halting": 0.1, "halting_by": "mass", "skip": None,
        "kv_slots": None, "layers": None, "tokens": None, "seed": 0,
    }  # fmt: skip
