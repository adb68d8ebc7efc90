"""The pages of the repository: links lead somewhere, and README lists the commands
there are."""

import csv
import json
import re
import runpy
import shlex
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

from dualpath_cli.base.ranges import LONGEST_NAME
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.main import main
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.spec.config import RANGES

ROOT = Path(__file__).parents[2]
FOLDERS = ("*.md", "llms.txt", "docs/**/*.md", "docs/*.ipynb", "benchmarks/*.md")
PAGES = sorted(page for pattern in FOLDERS for page in ROOT.glob(pattern))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, no punctuation, hyphens for
    spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if path.startswith(("https:", "http:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_extras_are_installed_from_the_clone_as_no_release_is_on_an_index():
    code = [*ROOT.glob("dualpath_cli/**/*.py"), *ROOT.glob("data_prep/**/*.py")]
    for file in (*PAGES, *code):
        assert "'dualpath[" not in file.read_text(encoding="utf-8"), file


def test_every_test_that_a_page_names_exists():
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(
            r"`((?:\w+/)*test_\w+\.py)`", page.read_text(encoding="utf-8")
        ):
            assert list((ROOT / "tests").glob(f"**/{name.removeprefix('tests/')}")), (
                page,
                name,
            )


def test_limits_of_the_page_of_faults_are_those_of_the_code():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"over {recipes.MOST_CHARACTERS:,} characters" in page
    assert f"at most {recipes.MOST_PARTS:,} parts" in page
    assert f"over {LONGEST_NAME} bytes" in page
    assert f"`n_layers` is at most {RANGES['n_layers'][1]:,}" in page
    assert f"`run.max_bad_steps` ({RunSettings().max_bad_steps})" in page


def test_readme_lists_the_commands_as_help_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[`dualpath (\w+(?: \w+)?)`\]\(.*?\) \| (.*) \|$", text, re.MULTILINE
    )
    assert rows == [(command.name, command.purpose) for command in COMMANDS.values()]


def test_the_page_of_a_recipe_has_every_key_as_it_is():
    written = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "docs" / "recipe.py"))["page"](), (
        "docs/recipe.py"
    )


def printed() -> dict[str, tuple[str, str]]:
    """Commands that need no torch and no run, with the output below them, by `page:
    command`."""
    found = {}
    for page in PAGES:
        if page.suffix != ".md":
            continue
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                if re.match("dualpath flops ", command) or ": error: " in output:
                    found[f"{page.relative_to(ROOT)}: {command}"] = command, output
    return found


PRINTED = printed()


@pytest.mark.parametrize("name", PRINTED)
def test_a_page_shows_what_its_command_prints(name, tmp_path, monkeypatch, capsys):
    """A line of three dots stands for lines that are left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    command, shown = PRINTED[name]
    main(shlex.split(command)[1:])
    said = capsys.readouterr()
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(f"{line}\n")
        for line in shown.strip("\n").splitlines()
    )
    assert re.fullmatch(pattern, (said.out + said.err).strip("\n") + "\n"), (
        said.out + said.err
    )


def test_the_table_of_many_gpus_is_what_flops_plans(capsys):
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    table = text.partition("| GPUs | tokens a step | `ddp` ")[2].partition("\n\n")[0]
    _, _, *rows = table.splitlines()
    assert len(rows) == 6
    for row in rows:
        gpus, tokens, *shown = (
            row.strip("| ").replace(",", "").replace("*", "").split("|")
        )
        words = (
            f"flops --config f160m_a25_k4 --plan --gpus {gpus} --batch-tokens {tokens}"
        )
        assert main([*words.split(), "--format", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)["plan"]
        planned = [
            f"{plan[name]['peak'] / 1e9:.2f}" for name in ("ddp", "fsdp", "hsdp")
        ]
        assert [cell.strip() for cell in shown] == planned, gpus


PRIMITIVES = ROOT / "docs" / "benchmarks" / "primitives.tar.xz"
DEPTHS = (1, 2, 4, 8)


def kept_text(name: str) -> str:
    with tarfile.open(PRIMITIVES) as archive:
        file = archive.extractfile(f"primitives/{name}")
        assert file is not None
        return file.read().decode()


def test_the_tables_of_primitives_are_the_scores_that_are_kept():
    page = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    scores = {}
    for seed in (0, 1):
        for row in json.loads(kept_text(f"seed_{seed}/loops.json"))["scores"]:
            key = seed, row["benchmark"], row["metric"], row["loops"]
            scores[key] = row

    of_one_seed = re.findall(r"│ (\w+_\d) +│ ([\w ]+?) +│ +200 │(.*)│", page)
    for benchmark, metric, shown in of_one_seed:
        found = [scores[0, benchmark, metric, r]["score"] for r in DEPTHS]
        assert shown.replace("│", " ").split() == [f"{score:.4f}" for score in found]

    of_both = re.findall(r"\| `(\w+_\d)` \| (\d) \| (.*) \|", page)
    for benchmark, seed, shown in of_both:
        rows = [scores[int(seed), benchmark, "accuracy", r] for r in DEPTHS]
        found = [f"{row['score']:.4f}" for row in rows]
        found += [
            f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
            for row in (rows[0], rows[-1])
        ]
        assert shown.split(" | ") == found
    assert (len(of_one_seed), len(of_both)) == (14, 14)


def test_the_differences_of_primitives_that_stay_after_a_correction_are_those_named():
    """Exact McNemar tests of the answers of two depths, with Holm's correction."""
    answers: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for seed in (0, 1):
        for row in csv.DictReader(kept_text(f"seed_{seed}/answers.csv").splitlines()):
            for r in DEPTHS:
                answers[seed, row["benchmark"], r].append(int(row[f"R={r}"]))

    p_of = {}
    for seed, benchmark, r in answers:
        if r in (1, 8):
            own = answers[seed, benchmark, 4]
            changed = np.subtract(answers[seed, benchmark, r], own)
            better, worse = (changed > 0).sum(), (changed < 0).sum()
            n = better + worse
            p_of[seed, benchmark, r] = binomtest(better, n).pvalue if n else 1.0

    assert len(p_of) == 28
    left = set()
    for place, key in enumerate(sorted(p_of, key=p_of.__getitem__)):
        if p_of[key] * (len(p_of) - place) >= 0.05:
            break
        left.add(key)
    assert left == {
        (0, "addition_3", 1),
        (0, "assignment_1", 1),
        (0, "assignment_2", 1),
        (1, "addition_2", 1),
        (1, "addition_2", 8),
    }


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_the_code_around_answer_takes_each_offset_of_the_sequences_that_have_it(
    tmp_path, monkeypatch
):
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rng, layers, rows = np.random.default_rng(0), 2, []
    # Length and places of `Answer`, of which the first counts.
    shapes = {
        "gsm8k": [(60, [10, 20]), (5, []), (30, [3])],
        "triviaqa": [(25, [9]), (12, [0])],
    }
    found: dict[str, dict[int, list[np.ndarray]]] = {}
    for source, sequences in shapes.items():
        of_source = found[source] = defaultdict(list)
        for sequence, (length, places) in enumerate(sequences):
            for position in range(length):
                token = "Answer" if position in places else "x"
                share = rng.random(layers)
                rows.append((source, sequence, position, token, share))
                if places and -8 <= position - places[0] <= 40:
                    of_source[position - places[0]].append(share)
    columns = ["source", "sequence", "position", "token", "deep_share"]
    table = pa.table(
        dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    )
    folder = tmp_path / "runs/f80m_a50_k4/default/routing/step-00018360"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "routing.parquet")

    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(code, names)

    assert (tmp_path / "answer.png").is_file()
    for offset, by_layer in zip(range(-8, 41), names["difference"], strict=True):
        pair = [found[source][offset] for source in ("gsm8k", "triviaqa")]
        if all(pair):
            gsm8k, triviaqa = (np.mean(shares, axis=0) for shares in pair)
            assert by_layer == pytest.approx(gsm8k - triviaqa)
        else:
            assert np.isnan(by_layer).all(), offset
