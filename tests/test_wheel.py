"""The built wheel: what is in it, and that it works where there is no checkout."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import dualpath_cli
from dualpath_cli.recipe import recipes

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("dualpath_cli", "data_prep")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of this checkout is unpacked into."""
    if find_spec("hatchling") is None:
        pytest.skip("building a wheel needs hatchling: pip install -e '.[dev]'")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "installed")
    return out / "installed"


def python(installed: Path, *words: str) -> str:
    """Output of python in an empty folder, with the wheel before all else it could import."""
    elsewhere = installed.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_runs_here_is_the_wheel_with_all_recipes(installed: Path) -> None:
    program = (
        "import dualpath_cli, data_prep; from dualpath_cli.recipe import recipes; "
        "print(dualpath_cli.__file__, data_prep.__file__, *recipes.names())"
    )
    *files, names = python(installed, "-c", program).split(maxsplit=2)
    assert files == [str(installed / name / "__init__.py") for name in PACKAGES]
    assert names.split() == recipes.names()
    for name in recipes.names():
        packaged = installed / "dualpath_cli" / "_recipes" / f"{name}.yaml"
        assert packaged.read_bytes() == (CHECKOUT / "recipes" / f"{name}.yaml").read_bytes()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("dualpath_cli flops --budget 80M --table", "a75 K4"),
        ("dualpath_cli fit --config f80m_a50_k4 --print_config", "max_tokens: 38503710720"),
        ("data_prep --help", "--tokenizer"),
    ],
    ids=["the paper's numbers", "a recipe and its base", "data preparation"],
)
def test_a_command_finds_what_it_needs(words: str, shown: str, installed: Path) -> None:
    assert shown in python(installed, "-m", *words.split())


def test_it_holds_every_file_and_no_more(installed: Path) -> None:
    for package in PACKAGES:
        packaged, here = (
            {
                path.relative_to(root)
                for path in (root / package).rglob("*.*")
                if not {"__pycache__", "_recipes"} & set(path.parts)
            }
            for root in (installed, CHECKOUT)
        )
        assert packaged == here
        assert any(path.suffix != ".py" for path in here)
    information = f"dualpath-{dualpath_cli.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {*PACKAGES, information}


def test_it_declares_the_command_the_license_and_the_version(installed: Path) -> None:
    (distribution,) = importlib.metadata.distributions(path=[str(installed)])
    assert distribution.version == dualpath_cli.__version__
    (command,) = distribution.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("dualpath", "dualpath_cli.cli:main")
    metadata = distribution.metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    text = distribution.read_text("licenses/LICENSE")
    assert text == (CHECKOUT / "LICENSE").read_text(encoding="utf-8")
