"""The built wheel: what is in it, and that it works where there is no checkout."""

import gzip
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import dualpath_cli
from data_prep import packaged
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.help import help_of
from dualpath_cli.cli.main import HELP
from dualpath_cli.cli.quickstart import RUN
from dualpath_cli.recipe import recipes
from tests.conftest import contents

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("dualpath_cli", "data_prep")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of this checkout is unpacked into."""
    if find_spec("hatchling") is None:
        pytest.skip("building a wheel needs hatchling: pip install -e '.[dev]'")
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build"]
    command = [*build, "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "installed")
    return out / "installed"


def python(installed: Path, *words: str) -> str:
    """Output of python in an empty folder, with the wheel before all else it could
    import."""
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


def test_what_runs_here_is_the_wheel_with_all_recipes(installed):
    program = (
        "import dualpath_cli, data_prep; from dualpath_cli.recipe import recipes; "
        "print(dualpath_cli.__file__, data_prep.__file__, *recipes.recipe_names())"
    )
    *files, names = python(installed, "-c", program).split(maxsplit=2)
    assert files == [str(installed / name / "__init__.py") for name in PACKAGES]
    assert names.split() == recipes.recipe_names()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "dualpath_cli fit --config f80m_a50_k4 --print_config",
            "max_tokens: 38503710720",
        ),
        (
            "dualpath_cli fit --config recipes/f160m_a25_k4.yaml --print_config",
            "wide: 37440",
        ),
        ("dualpath_cli prepare --help", "--tokenizer"),
    ],
    ids=["a recipe and its base", "its path", "data preparation"],
)
def test_a_command_finds_what_it_needs(words, shown, installed):
    assert shown in python(installed, "-m", *words.split())


def in_helps() -> list[str]:
    """The commands that stand in a --help, each on lines of its own."""
    texts = [HELP, *map(help_of, COMMANDS.values())]
    text = re.sub(r"\\\n *", "", "\n".join(texts))
    return re.findall(r"^  (dualpath .*)$", text, re.MULTILINE)


def in_readme() -> list[str]:
    """The commands in the README's blocks: after `$ `, or, where a block has none, its
    lines."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line.removeprefix("$ ").partition(" #")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if line.startswith("$ ") or "\n$ " not in f"\n{block}"
    ]
    return [line for line in lines if line]


EXAMPLES = dict.fromkeys([*in_helps(), *in_readme()])
NOT_RUN = {"make ": "it needs the repository"}
"""The beginning of examples that are not run, and why."""
ON_THE_NETWORK = {
    "nemotron-cc": (1, "check the network"),
    "recipes/data/paper.yaml": (1, "check the network"),
    "SmolLM2": (1, "check the network"),
    "--tasks piqa": (2, "Couldn't reach 'ybisk/piqa' on the Hub"),
}
"""Parts of examples that are run as far as their first download; the exit code and the
message there."""


SCRIPT = """
import sys
from dualpath_cli.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""What pip writes as the command."""


def test_each_help_but_of_commands_without_options_has_an_example():
    helps = in_helps()
    for name in COMMANDS.keys() - {"quickstart", "recipes"}:
        begin = f"dualpath {name} "
        assert any(example.startswith(begin) for example in helps), name


def test_examples_are_found():
    assert "dualpath fit --config recipes/f160m_a25_k4.yaml" in in_helps()
    assert "dualpath prepare --source sample --out data/sample" in in_helps()
    assert "dualpath quickstart" in in_readme()
    assert not [
        line
        for line in EXAMPLES
        if line.split()[0] not in ("dualpath", "make", "python")
    ]


@pytest.fixture(scope="module")
def typed(installed: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """`typed(line)`: a line in a shell that has the wheel's `dualpath`, and no network.

    Its folder was empty, but for the texts that examples name, and had the quickstart
    made in it.
    """
    home, bin = installed.parent / "home", installed.parent / "bin"
    bin.mkdir()
    (bin / "dualpath").write_text(f"#!{sys.executable}\n{SCRIPT}")
    (bin / "dualpath").chmod(0o755)
    texts = [
        page.read_text(encoding="utf-8")
        for page in sorted(CHECKOUT.glob("docs/**/*.md"))
    ]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    for name in ("novels.jsonl.gz", "texts/novels.jsonl.gz", "folder/notes.jsonl.gz"):
        write = home / name
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_bytes(gzip.compress(rows.encode()))
    (home / "gpt2").mkdir()  # a folder of that name stands in for the download
    packaged.sample_tokenizer().save(home / "gpt2")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    path = os.pathsep.join(
        [str(bin), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = {**os.environ, **nowhere, "PATH": path, "PYTHONPATH": str(installed)}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=home, env=environment, capture_output=True, text=True
        )

    done = run("dualpath quickstart")
    assert done.returncode == 0, done.stderr
    assert "\ndualpath fit --config quickstart\n" in done.stdout
    made = (
        "curve.png",
        "ablations/step-00000150/forced_loops.pdf",
        "routing/step-00000150/summary.json",
    )
    assert all((home / RUN / name).is_file() for name in made)
    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)  # with the quickstart
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_from_the_wheel_alone(example, typed):
    """To its end, or until nothing but its data, a GPU or the network is missing."""
    if reason := next(
        (why for start, why in NOT_RUN.items() if example.startswith(start)), None
    ):
        pytest.skip(f"not run: {reason}")
    done = typed(example)
    ends = [end for part, end in ON_THE_NETWORK.items() if part in example]
    if ends:
        code, message = ends[0]
        assert (done.returncode, done.stderr.count(message)) == (code, 1), done.stderr
        pytest.skip("run as far as its first download: it needs the network")
    missing = (
        "data folder '.*' does not exist; make it with|No supported gpu backend found"
    )
    assert done.returncode == (2 if re.search(missing, done.stderr) else 0), done.stderr


def test_it_holds_every_file_and_no_more(installed):
    def files(package: Path) -> dict[str, bytes]:
        return {
            name: content
            for name, content in contents(package).items()
            if not {"__pycache__", "_recipes"} & set(Path(name).parts)
        }

    for package in PACKAGES:
        assert files(installed / package) == files(CHECKOUT / package)
    packaged = installed / "dualpath_cli" / "_recipes"
    assert contents(packaged) == contents(CHECKOUT / "recipes")

    (distribution,) = importlib.metadata.distributions(path=[str(installed)])
    information = f"dualpath-{dualpath_cli.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {*PACKAGES, information}
    assert (installed / information / "licenses" / "LICENSE").is_file()
    (command,) = distribution.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("dualpath", "dualpath_cli.cli.main:main")
