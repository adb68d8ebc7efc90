"""The data folder: what others have in its way stays, and unfinished work is continued
or kept."""

import os
import re
import shutil
from pathlib import Path

import pytest

from data_prep import encoding
from data_prep.inspection import Inspect, inspect
from data_prep.prepare import finished
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.manifest import MANIFEST, Manifest
from tests.conftest import contents
from tests.data.faulty_data import cut, edited, flip, intact, put, remove
from tests.data_prep.conftest import (
    interrupted_at_the_end,
    prepare,
    source,
    write_jsonl,
)

TEXTS = ["hello", "", "a <|endoftext|> in the text", "hello hello"]


def test_a_finished_request_is_recognised_until_something_about_it_changes(
    ask, large, tmp_path
):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    assert finished(ask(path), overwrite=False) is None
    manifest = prepare(ask(path))
    assert finished(ask(path), overwrite=False) == manifest
    others = [
        ask(path, tokenizer=large),
        ask(write_jsonl(tmp_path / "b.jsonl", TEXTS)),
        ask(path, chunk_tokens=65),
        ask(path, duplicates="keep"),
        ask(path, min_chars=2),
        ask(path, seed=1),
        ask(path, tokens=5),
        ask(path, val_fraction=0.1),
    ]
    for other in others:
        with pytest.raises(UserError, match=r"holds other data .*--overwrite"):
            finished(other, overwrite=False)
        assert finished(other, overwrite=True) is None
    write_jsonl(path, [*TEXTS, "more"])
    with pytest.raises(UserError, match="holds other data"):
        finished(ask(path), overwrite=False)


def test_a_link_to_a_mount_point_is_refused_as_the_mount_point_is(ask, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    link = tmp_path / "link"
    link.symlink_to("/proc")
    for out in (Path("/proc"), link):
        with pytest.raises(UserError, match=f"--out '{out}' is a mount point"):
            finished(ask(path, out=out), overwrite=False)


def test_a_damaged_folder_is_made_again_when_it_may_be_replaced(ask, out, tmp_path):
    asked = ask(TEXTS, val_fraction=0.5)
    manifest = prepare(asked)
    assert finished(asked, overwrite=True) == manifest
    expected = contents(out)
    assert {"tokenizer.json", "rejected.jsonl.zst", "val/a.jsonl"} < expected.keys()
    for name in expected.keys() - {"manifest.json"}:
        flip(out / name, -1)
        assert prepare(asked, overwrite=True) == manifest
        assert contents(out) == expected, name


@pytest.mark.parametrize(
    "damage",
    [
        remove(MANIFEST),
        cut(MANIFEST),
        put(MANIFEST, b"{}"),
        edited(MANIFEST, "chunks", [{"name": []}]),
        edited(MANIFEST, "documents", "2"),
        edited(MANIFEST, "documents", 9),  # as another number it can still be read
    ],
)
def test_the_way_out_of_a_damaged_manifest_leads_out(damage, ask, out, tmp_path):
    asked = ask(TEXTS)
    manifest = prepare(asked)
    damage(out)
    way_out = "or move it away and prepare it again$"
    with pytest.raises(UserError, match=way_out):
        inspect(Inspect(str(out)))
    out.rename(tmp_path / "away")
    assert prepare(asked) == manifest


@pytest.mark.parametrize("name", ["rejected.jsonl.zst", "val/a.jsonl"])
def test_the_way_out_of_a_missing_file_leads_out(name, ask, out):
    asked = ask(TEXTS, val_fraction=0.5)
    manifest = prepare(asked)
    expected = contents(out)
    (out / name).unlink()
    said = f"{name} is missing; copy .* or prepare it again with .* --overwrite`$"
    with pytest.raises(UserError, match=said):
        inspect(Inspect(str(out)))
    assert prepare(asked, overwrite=True) == manifest
    assert contents(out) == expected


def test_a_strangers_file_in_a_data_folder_is_not_deleted(ask, out, tmp_path):
    prepare(ask(TEXTS))
    (out / "notes").mkdir()
    (out / "notes" / "thesis.tex").write_text("mine")
    other = ask(write_jsonl(tmp_path / "b.jsonl", TEXTS))
    with pytest.raises(UserError, match=r"holds 'notes/thesis.tex', which is not data"):
        prepare(other, overwrite=True)
    assert (out / "notes" / "thesis.tex").exists()


def test_what_appears_meanwhile_under_the_final_name_is_not_deleted(
    ask, out, tmp_path, monkeypatch
):
    write = Manifest.write

    def somebody_else(manifest: Manifest, folder: Path) -> None:
        write(manifest, folder)
        out.mkdir()
        (out / "manifest.json").write_text('{"name": "a web page"}')

    asked = ask(TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", somebody_else)
        with pytest.raises(UserError, match="not a data folder"):
            prepare(asked)
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"not a data folder.* move it away, or"):
            finished(asked, overwrite)
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    out.rename(tmp_path / "page")
    assert intact(prepare(asked), out)


def test_unfinished_work_of_another_purpose_is_never_discarded(ask, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("mine")
    asked = ask(TEXTS)
    with pytest.raises(UserError, match="holds something else; move that away"):
        prepare(asked, overwrite=True)
    assert (tmp_path / "out.partial" / "thesis.tex").exists()


@pytest.mark.parametrize("killed", ["out", "finished"])
def test_data_that_are_replaced_are_not_lost_at_a_kill_nor_is_a_folder_beside_them(
    killed, ask, out, tmp_path, monkeypatch
):
    beside = tmp_path / ".out.replaced" / "thesis.tex"
    beside.parent.mkdir()
    beside.write_text("mine")
    before, rename = prepare(ask(TEXTS)), Path.rename

    def dying(path: Path, target: Path) -> Path:
        if path.name == killed:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare(ask(TEXTS, seed=1), overwrite=True)
    with pytest.raises(UserError, match="--overwrite"):
        prepare(ask(TEXTS, seed=2))
    assert intact(before, out)
    assert intact(prepare(ask(TEXTS, seed=1), overwrite=True), out)
    assert beside.read_text() == "mine"
    assert not (tmp_path / "out.partial").exists()


def test_unfinished_work_on_something_else_is_kept_unless_it_may_be_discarded(
    ask, large, tmp_path, capsys
):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n{"text": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        prepare(ask(path, strict=True))
    others = {
        "seed: 0 then, 1 now": ask(path, strict=True, seed=1),
        "strict: True then, False now": ask(path),
        r"sources\.0\.max_epochs: 1 then, 2 now": ask(
            (source("a", path, max_epochs=2),), strict=True
        ),
        "the tokenizer has changed": ask(path, strict=True, tokenizer=large),
    }
    os.utime(path, (0, 0))
    others["the files of 'a' have changed"] = ask(path, strict=True)
    for difference, other in others.items():
        with pytest.raises(
            UserError, match=rf"unfinished .*\({difference}\); .*--overwrite"
        ):
            prepare(other)
    other = ask(path, seed=1)
    assert "removing" not in capsys.readouterr().err
    assert prepare(other, overwrite=True).settings["seed"] == 1
    assert capsys.readouterr().err.count("removing the unfinished work in '") == 1
    with pytest.raises(UserError, match="line 2"):
        prepare(ask(path, strict=True), overwrite=True)
    left = contents(tmp_path / "out.partial")
    assert finished(other, overwrite=False) is not None
    assert contents(tmp_path / "out.partial") == left != {}


def test_unfinished_work_that_was_damaged_is_made_again(
    ask, out, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 100)
    asked = ask([*(f"text {n} " * 5 for n in range(12)), "", *TEXTS], val_fraction=0.2)
    partial, kept = tmp_path / "out.partial", tmp_path / "kept"
    ends = interrupted_at_the_end(lambda folder: shutil.copytree(partial, kept))
    with ends, pytest.raises(KeyboardInterrupt):
        prepare(asked)
    prepare(asked)
    expected = contents(out)
    kinds: dict[str, list[str]] = {}
    for name in sorted(contents(kept)):
        kinds.setdefault(re.sub(r"\d+", "", name), []).append(name)
    kinds.pop("request.json")
    assert any(len(names) > 1 for names in kinds.values())
    for first, *others in kinds.values():
        data = (kept / first).read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 3] ^= 1
        another = [(kept / name).read_bytes() for name in others[:1]]
        for damaged in (flipped, data[: len(data) // 2], b"", *another):
            shutil.rmtree(out)
            shutil.copytree(kept, partial)
            (partial / first).write_bytes(damaged)
            prepare(asked)
            assert contents(out) == expected, first
        shutil.rmtree(out)
        shutil.copytree(kept, partial)
        (partial / first).unlink()
        os.mkfifo(partial / first)
        prepare(asked)
        assert contents(out) == expected, f"{first} as a pipe"
    shutil.copytree(kept, partial)
    (partial / "request.json").write_bytes(b"{\xff")
    shutil.rmtree(out)
    with pytest.raises(UserError, match=r"is the place of unfinished work, but holds"):
        prepare(asked)
