"""Files in the way of a data folder: finished and unfinished work, and other people's files."""

import json
from pathlib import Path

import pytest

from data_prep.prepare import finished, prepare
from data_prep.writing.work_folder import WorkFolder
from dualpath_cli.errors import UserError
from tests.data_prep.preparing import write_jsonl
from tests.manifests import intact

TEXTS = ["hello", "", "a <|endoftext|> in the text", "hello hello"]


def test_a_finished_request_is_recognised_until_something_about_it_changes(ask, large, tmp_path):
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


def test_a_damaged_folder_is_not_taken_for_finished(ask, out):
    asked = ask(TEXTS)
    prepare(asked)
    chunk = out / "chunk-0-0.bin"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(UserError, match="bytes instead of"):
        finished(asked, overwrite=False)
    assert finished(asked, overwrite=True) is None
    assert intact(prepare(asked, overwrite=True), out)


def test_a_folder_of_another_purpose_is_never_replaced(ask, out, small):
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    small.save(out)
    asked = ask(TEXTS)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a data folder"):
            finished(asked, overwrite)


def test_a_strangers_file_in_a_data_folder_is_not_deleted(ask, out, tmp_path):
    prepare(ask(TEXTS))
    (out / "notes").mkdir()
    (out / "notes" / "thesis.tex").write_text("mine")
    other = ask(write_jsonl(tmp_path / "b.jsonl", TEXTS))
    with pytest.raises(UserError, match=r"holds 'notes/thesis.tex', which is no data"):
        prepare(other, overwrite=True)
    assert (out / "notes" / "thesis.tex").exists()


def test_what_appears_meanwhile_under_the_final_name_is_not_deleted(ask, out, tmp_path):

    def somebody_else(folder: Path) -> None:
        out.mkdir()
        (out / "thesis.tex").write_text("mine")

    asked = ask(TEXTS)
    with pytest.raises(UserError, match="not a data folder"):
        prepare(asked, extra=somebody_else)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").rename(tmp_path / "thesis.tex")
    assert intact(prepare(asked), out)


def test_unfinished_work_of_another_purpose_is_never_discarded(ask, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("mine")
    asked = ask(TEXTS)
    with pytest.raises(UserError, match="holds something else; move it"):
        prepare(asked, overwrite=True)
    assert (tmp_path / "out.partial" / "thesis.tex").exists()


def test_what_is_left_of_a_finished_preparation_is_removed_by_the_next_call(
    ask, tmp_path, monkeypatch
):
    asked = ask(TEXTS)

    def killed(folder: WorkFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked)
    assert (tmp_path / "out.partial").exists()
    assert finished(asked, overwrite=False)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "out"}


def test_unfinished_work_on_something_else_is_kept_unless_it_may_be_discarded(ask, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n{"text": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        prepare(ask(path, strict=True))
    other = ask(path, strict=True, seed=1)
    with pytest.raises(UserError, match=r"unfinished .*seed: 0 then, 1 now.*--overwrite"):
        prepare(other)
    other = ask(path, seed=1)
    assert prepare(other, overwrite=True).settings["seed"] == 1
