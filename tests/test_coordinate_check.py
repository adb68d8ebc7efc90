"""Width transfer keeps activations and their updates of one size; without it they grow."""

from benchmarks.coordinate_check import PARTS, measure, slopes

BOUND = 0.2
"""Of a slope of log size over log width."""


def test_sizes_and_updates_are_flat_with_a_base_width_and_grow_without() -> None:
    found = {
        (part, what, step): both
        for part, what, step, both in slopes(measure((32, 128), seeds=1, steps=4, gain_init=0.0))
    }
    # Part of the first change of the logits is by the head's initial values, 1 / sqrt(width).
    places = [(part, "change", -1 if part == "logits" else 1) for part in PARTS]
    places += [(part, "size", 0) for part in ("deep path", "wide path")]
    for place in places:
        transferred, plain = found[place]
        assert abs(transferred) < BOUND < plain, place
