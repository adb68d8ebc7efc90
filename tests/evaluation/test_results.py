"""Scores as files: valid JSON, whatever a model says."""

import json
import math

from dualpath_cli.evaluation import results
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.results import score_text


def test_a_text_that_a_model_gives_no_probability_is_null(tmp_path):
    asked = Asked(BENCHMARKS["c4"], [(0, "a")], "", "", None, documents=1)
    result = results.keep(tmp_path, asked, "key", [{"doc": 0, **score_text("a", -math.inf)}])
    results.write(tmp_path, {"name": "m"}, [result], {}, {})
    written = [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.jsonl")]
    assert len(written) == 3
    for path in written:
        assert "Infinity" not in path.read_text(), path
    head = json.loads((tmp_path / "results.json").read_text())
    assert head["tasks"]["c4"]["metrics"]["rolling_bpb"]["value"] is None
