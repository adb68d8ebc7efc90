"""What LightningCLI itself offers: the same commands as `dualpath`, the same flops."""

import pytest

from dualpath_cli.cli import COMMANDS, main
from dualpath_cli.command.lightning_cli import DualPathCLI


def test_its_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        DualPathCLI(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["--budget", "80M", "--alpha", "50", "--k", "4"],
        ["--budget", "160M", "--block", "loop", "--loops", "2", "--format", "json"],
        ["--config", "f80m_a25_k3", "--format", "yaml"],
        ["--table", "--budget", "160M", "--format", "csv"],
    ],
)
def test_flops_prints_the_same_through_lightning_cli(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flops", *words]) == 0
    quick = capsys.readouterr().out
    DualPathCLI(["flops", *words])
    assert capsys.readouterr().out == quick
