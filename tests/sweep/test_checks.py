"""What `dualpath sweep` refuses before it writes anything."""

from pathlib import Path

import pytest

from dualpath_cli import cli


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
