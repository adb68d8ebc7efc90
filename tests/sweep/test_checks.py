"""What `dualpath sweep` refuses before it writes anything."""

import json
from pathlib import Path

import pytest
import yaml

from dualpath_cli import cli
from dualpath_cli.command.own_classes import hashes
from dualpath_cli.settings import settings_from
from tests.sweep.sweeps import starts


def files(out: Path) -> dict[Path, bytes]:
    """All that a sweep has written."""
    return {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("rates", ["off", "2e-3,4e-3"])
def test_a_sweep_that_is_refused_leaves_the_one_before_as_it_was(
    rates: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words, "--yes", "--tune", rates, "--seeds", "1", "--controls", "wide"]
    assert cli.main(words) == 0
    before = files(tmp_path / "sweep")
    assert cli.main([*words, "--budget", "110K"]) == 2
    assert "give this sweep another --out" in capsys.readouterr().err
    assert files(tmp_path / "sweep") == before


def test_no_seeds_are_added_to_runs_of_another_source(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "tests.own_classes.MlpGate"
    words = [*words, "--yes", "--tune", "off", "--set", f"model.gate=two_gates,{own}"]
    words += ["--controls", "none"]
    assert cli.main([*words, "--seeds", "1"]) == 0
    out = tmp_path / "sweep"
    run = out / "runs" / f"a50_k2-gate_{own}" / "seed_0"
    now = hashes(settings_from(yaml.safe_load((run / "recipe.yaml").read_text())).model)
    assert now.keys() == {own}
    (run / "versions.json").write_text(json.dumps({"classes": {own: "0" * 64}}))
    before = files(out)
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert f"{run} was begun with another source of {own}, kept in" in said
    assert "go back to that or give this sweep another --out" in said
    assert files(out) == before
    (run / "versions.json").write_text(json.dumps({"classes": now}))
    assert cli.main(words) == 0
    assert len(starts(out)) == 2 * 2
