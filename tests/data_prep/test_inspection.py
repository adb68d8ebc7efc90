"""Inspection: what changed since a folder was prepared is named, and what it says is true."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from tests.data.manifests import source_count, write_data_folder

TEXTS = ["hello world", "Ünï 日本 \U0001f600\n", "[bold]hell[/bold]\x1b[31m :smile:", "x" * 900]
TEXTS += [f"{n} hello" * n for n in range(1, 11)]
UNVERIFIED = {"request", "settings"}
UNVERIFIED_OF_A_SOURCE = {"name", "path", "passes", "normalised", "faults"}


@pytest.fixture(scope="module")
def original(small: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of several chunks."""
    folder = tmp_path_factory.mktemp("original") / "data"
    (folder / "val").mkdir(parents=True)
    for name in ("rejected.jsonl.zst", "val/a.jsonl"):
        (folder / name).write_bytes(name.encode())
    ids = [id for text in TEXTS for id in [*small.encode(text), small.eot_id]]
    made = {"tokens": len(ids), "text_bytes": 999}
    left_out = {"rejected": {"too short": 3}, "exact_duplicates": 2, "near_duplicates": 4}
    left_out |= {"unused": 1, "validation": 1, "faults": ["b.jsonl.gz: cut off [at 12]"]}
    count = source_count("novels [a]", read=25, documents=14, **left_out, **made)
    write_data_folder(folder, ids, small, 300, **made, documents=14, sources=[count])
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the original that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def problem_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that an inspection ends with; empty where all is intact."""
    code = main(["inspect", str(folder), "--samples", "0"])
    err = capsys.readouterr().err
    assert code == (2 if err else 0)
    assert err.count("\n") == bool(err)
    return err


def test_a_flipped_byte_of_any_file_is_found_and_named(original, capsys):
    names = sorted(p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file())
    names.remove("manifest.json")
    names.remove("tokenizer.json")
    assert {"index.json", "val/a.jsonl", "chunk-0-0.bin", "chunk-0-3.bin"} < set(names)
    for name in names:
        size = (original / name).stat().st_size
        for position in {0, 4, 8, size // 2, size - 1}:
            flip(original / name, position)
            assert f"{original / name}: " in problem_of(original, capsys)
            flip(original / name, position)
    assert problem_of(original, capsys) == ""


@settings(max_examples=60, deadline=None)
@given(data=st.data(), mask=st.integers(1, 255))
def test_a_flipped_byte_of_the_manifest_is_found_unless_nothing_can_tell(original, data, mask):
    from data_prep.inspection import Inspect, run

    path = original / "manifest.json"
    before = path.read_bytes()

    def verified(content: bytes) -> Any:
        manifest = json.loads(content)
        sources = [
            {key: s[key] for key in s if key not in UNVERIFIED_OF_A_SOURCE}
            for s in manifest.pop("sources")
        ]
        # By which reason documents were rejected is not known either, only how many.
        for source in sources:
            source["rejected"] = list(source["rejected"].values())
        return {key: manifest[key] for key in manifest if key not in UNVERIFIED}, sources

    try:
        flip(path, data.draw(st.integers(0, len(before) - 1)), mask)
        try:
            unseen = verified(path.read_bytes()) == verified(before)
        except (ValueError, KeyError, AttributeError, TypeError):
            unseen = False
        try:
            run(Inspect(str(original), samples=0))
        except (UserError, RunFailed):
            return
        assert unseen
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda m: {"documents": 16}, "16 documents, but 14 in the chunks"),
    (lambda m: {"tokens": 9}, r"9 tokens, but [\d,]+ in the chunks"),
    (lambda m: {"text_bytes": 9}, r"text_bytes is 9, but 999 in its sources"),
    (lambda m: {"sources": [dataclasses.replace(m.sources[0], unused=5)]},
     r"25 documents of 'novels \[a\]' were read, but 29 are accounted for"),
])  # fmt: skip
def test_counts_that_do_not_add_up_are_named(folder, capsys, change, problem):
    manifest = Manifest.read(folder)
    dataclasses.replace(manifest, **change(manifest)).write(folder)
    assert re.search(f"{folder}/manifest.json: {problem};", problem_of(folder, capsys))


def test_the_report_says_what_became_of_the_documents_and_shows_them(original, small, capsys):
    assert main(["inspect", str(original), "--samples", "99"]) == 0
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    for expected in (
        "novels [a]", "share of tokens 100.0%", "passes 1.00", "read 25", "written 14",
        "validation 1", "exact duplicates 2", "near duplicates 4", "unused 1", "too short 3",
        "fault of novels [a]: b.jsonl.gz: cut off [at 12]",
    ):  # fmt: skip
        assert expected in rows
    lengths = [len(small.encode(text)) + 1 for text in TEXTS]
    median, mean = np.median(lengths), np.mean(lengths)
    assert f"median {median:,.1f}, mean {mean:,.1f}, " in out
    assert f"most {max(lengths)}\n" in out
    shown = re.findall(r"document (\d+) of 14, (\d+) tokens from token ([\d,]+) on:", out)
    starts = [f"{start:,}" for start in np.cumsum([0, *lengths[:-1]])]
    assert shown == [
        (str(n), str(length), start)
        for n, (length, start) in enumerate(zip(lengths, starts, strict=True), 1)
    ]
    # Literally and on one line, also across chunks; of a long one the beginning.
    assert r"[bold]hell[/bold]\x1b[31m :smile:" in out
    assert "Ünï 日本 \U0001f600\\n" in out
    assert "\x1b" not in out
    joined = "".join(line.strip() for line in out.splitlines())
    assert re.search("[^x]x{400} ?\\[\\.\\.\\.\\]", joined)
    for n in range(1, 11):
        assert f"{n} hello" * n in re.sub(r"\s+", " ", out)
    assert out.endswith(
        f"{original}: intact: every byte is as it was prepared, and the counts add up\n"
    )
