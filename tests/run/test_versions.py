"""What is written of versions, also by a checkout that is on the path and not installed."""

import importlib.metadata
import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import dualpath_cli
from dualpath_cli.cli import main
from tests.tiny_run import Fit


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves `dualpath` without metadata, and all other packages as they are."""
    found = Distribution.from_name.__func__  # type: ignore[attr-defined]

    def from_name(cls: type[Distribution], name: str) -> Distribution:
        if name == "dualpath":
            raise PackageNotFoundError(name)
        return found(cls, name)

    monkeypatch.setattr(Distribution, "from_name", classmethod(from_name))


@pytest.mark.usefixtures("not_installed")
def test_a_checkout_that_is_not_installed_trains_and_exports(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version("dualpath")
    run = fit()
    packages = json.loads((run / "versions.json").read_text())["packages"]
    assert packages["dualpath"] == dualpath_cli.__version__
    assert packages["lightning"] == importlib.metadata.version("lightning")
    out = tmp_path / "exported"
    assert main(["export", "--format", "hf", "--ckpt_path", str(run), "--out", str(out)]) == 0
    assert f"dualpath {dualpath_cli.__version__}." in (out / "README.md").read_text()
