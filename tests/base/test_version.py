"""What the project is installed with: the known-good versions, and the Pythons it
names."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
KNOWN = [Requirement(line) for line in LINES if not line.startswith("#")]
ALLOWED = SpecifierSet(PROJECT["requires-python"])
PYTHONS = [minor for minor in range(30) if f"3.{minor}.0" in ALLOWED]
SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}


def wanted() -> list[Requirement]:
    """The requirements of pyproject.toml, those of its extras too, but for its own
    extras."""
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [r for r in map(Requirement, texts) if r.name != PROJECT["name"]]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("minor", PYTHONS)
def test_each_requirement_has_one_known_version_which_it_allows(minor, system):
    place = {
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.0",
        "sys_platform": system,
        "platform_system": SYSTEMS[system],
        "platform_machine": "arm64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    versions: dict[str, list[str]] = {}
    for known in KNOWN:
        if known.marker is None or known.marker.evaluate(place):
            (pin,) = known.specifier
            assert pin.operator == "=="
            versions.setdefault(known.name.replace("_", "-").lower(), []).append(
                pin.version
            )
    for requirement in wanted():
        found = versions.get(requirement.name.replace("_", "-").lower(), [])
        assert len(found) == 1, requirement
        assert found[0] in requirement.specifier, (
            f"{requirement}: run `make constraints`"
        )


def test_known_versions_suit_each_build_of_pytorch_and_each_index():
    (torch,) = (known for known in KNOWN if known.name == "torch")
    (pin,) = torch.specifier
    assert all(
        f"{pin.version}+{build}" in torch.specifier for build in ("cpu", "cu126")
    )
    chosen_by_the_build = re.compile("nvidia|cuda|triton")
    assert not [known.name for known in KNOWN if chosen_by_the_build.match(known.name)]
    assert not [known for known in KNOWN if known.url]


def test_the_same_pythons_are_named_wherever_they_are_chosen():
    first, last = f"3.{PYTHONS[0]}", f"3.{PYTHONS[-1]}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = " ".join(f"python3.{minor}" for minor in reversed(PYTHONS))
    assert f"for p in python3 {names}; do" in makefile
    assert (
        f"not (3, {PYTHONS[0]}) <= sys.version_info[:2] <= (3, {PYTHONS[-1]})"
        in makefile
    )
    for page in ("Makefile", "README.md", "CONTRIBUTING.md"):
        assert f"Python {first} to {last}" in (ROOT / page).read_text(
            encoding="utf-8"
        ), page
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    rows = ci["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert {row["python"] for row in rows} == {first, last}


def test_no_timeout_ends_the_hours_of_make_torture():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ntorture:")[2].partition("\n\n")[0]
    lines = [line for line in recipe.splitlines() if "/pytest " in line]
    assert lines
    assert all(line.endswith(" --timeout 0") for line in lines)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """`made(uv)`: make's exit code, and the words of the installers that `make setup`
    starts.

    They are a uv and a Python that only note their words.
    """
    if shutil.which("make") is None:
        pytest.skip("needs make")
    log, bin, venv = tmp_path / "log.txt", tmp_path / "bin", tmp_path / "venv"
    bin.mkdir()
    for name in ("make", "sh", "mkdir", "touch", "rm"):
        (bin / name).symlink_to(shutil.which(name) or "")

    def write(path: Path, then: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{then}\n')
        path.chmod(0o755)

    def run(uv: bool, **environment: str) -> tuple[int, list[str]]:
        # no uv to be had
        write(venv / "bin" / "python", 'case "$*" in *" uv") exit 1; esac')
        if uv:
            write(bin / "uv", "")
        command = ["make", "setup", f"VENV={venv}", f"PYTHON={venv}/bin/python"]
        variables = {
            k: v for k, v in os.environ.items() if not k.startswith(("UV_", "MAKE"))
        }
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**variables, "PATH": str(bin), **environment},
            capture_output=True,
            text=True,
        )
        lines = log.read_text().splitlines()
        return done.returncode, [line for line in lines if "--editable" in line]

    return run


@pytest.mark.parametrize("uv", [True, False])
def test_make_installs_known_versions_by_uv_or_by_pip(uv, made):
    code, lines = made(uv)
    assert code == 0
    assert lines[-1].startswith("pip install --python" if uv else "-m pip")
    assert "--constraint constraints.txt" in lines[-1]


def test_make_installs_other_versions_where_they_are_asked_for(made):
    code, lines = made(True, UV_RESOLUTION="highest")
    assert code == 0
    assert "constraint" not in lines[-1]
    assert lines[-1].startswith("pip install --python")
