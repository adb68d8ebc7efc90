"""What is in the way of a data folder: finished and unfinished work, and other people's files."""

import json
from pathlib import Path

import pytest

from data_prep.prepare import finished, prepare
from data_prep.writing.work_folder import WorkFolder
from dualpath_cli.errors import UserError
from dualpath_cli.text.tokenizer import Tokenizer
from tests.data_prep.preparing import request, source, write_jsonl

TEXTS = ["hello", "", "a <|endoftext|> in the text", "hello hello"]


def _request(path: Path, tokenizer: Tokenizer, out: Path, **settings):
    return request([source("a", path)], tokenizer, out, **settings)


def test_a_finished_request_is_recognised_until_something_about_it_changes(small, large, tmp_path):
    path, out = write_jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "out"
    assert finished(_request(path, small, out), overwrite=False) is None
    manifest = prepare(_request(path, small, out))
    assert finished(_request(path, small, out), overwrite=False) == manifest
    others = [
        _request(path, large, out),
        _request(write_jsonl(tmp_path / "b.jsonl", TEXTS), small, out),
        *(
            _request(path, small, out, **{key: value})
            for key, value in {
                "chunk_tokens": 65,
                "duplicates": "keep",
                "min_chars": 2,
                "seed": 1,
                "tokens": 5,
                "val_fraction": 0.1,
            }.items()
        ),
    ]
    for other in others:
        with pytest.raises(UserError, match=r"holds other data .*--overwrite"):
            finished(other, overwrite=False)
        assert finished(other, overwrite=True) is None
    write_jsonl(path, [*TEXTS, "more"])
    with pytest.raises(UserError, match="holds other data"):
        finished(_request(path, small, out), overwrite=False)


def test_a_damaged_folder_is_not_taken_for_finished(small, tmp_path):
    asked = _request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, tmp_path / "out")
    prepare(asked)
    chunk = tmp_path / "out" / "chunk-0-0.bin"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(UserError, match="bytes instead of"):
        finished(asked, overwrite=False)
    assert finished(asked, overwrite=True) is None
    prepare(asked, overwrite=True).verify(tmp_path / "out")


def test_a_folder_of_another_purpose_is_never_replaced(small, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    small.save(out)
    asked = _request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, out)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a data folder"):
            finished(asked, overwrite)


def test_a_strangers_file_in_a_data_folder_is_not_deleted(small, tmp_path):
    out = tmp_path / "out"
    prepare(_request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, out))
    (out / "notes").mkdir()
    (out / "notes" / "thesis.tex").write_text("mine")
    other = _request(write_jsonl(tmp_path / "b.jsonl", TEXTS), small, out)
    with pytest.raises(UserError, match=r"holds 'notes/thesis.tex', which is no data"):
        prepare(other, overwrite=True)
    assert (out / "notes" / "thesis.tex").exists()


def test_what_appears_meanwhile_under_the_final_name_is_not_deleted(small, tmp_path):
    out = tmp_path / "out"

    def somebody_else(folder: Path) -> None:
        out.mkdir()
        (out / "thesis.tex").write_text("mine")

    asked = _request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, out)
    with pytest.raises(UserError, match="not a data folder"):
        prepare(asked, extra=somebody_else)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").rename(tmp_path / "thesis.tex")
    prepare(asked).verify(out)


def test_unfinished_work_of_another_purpose_is_never_discarded(small, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("mine")
    asked = _request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, tmp_path / "out")
    with pytest.raises(UserError, match="holds something else; move it"):
        prepare(asked, overwrite=True)
    assert (tmp_path / "out.partial" / "thesis.tex").exists()


def test_what_is_left_of_a_finished_preparation_is_removed_by_the_next_call(
    small, tmp_path, monkeypatch
):
    asked = _request(write_jsonl(tmp_path / "a.jsonl", TEXTS), small, tmp_path / "out")

    def killed(folder: WorkFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked)
    assert (tmp_path / "out.partial").exists()
    assert finished(asked, overwrite=False)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "out"}


def test_a_prepared_folder_is_replaced_as_a_whole(small, tmp_path):
    out = tmp_path / "out"
    prepare(
        _request(
            write_jsonl(tmp_path / "a.jsonl", [f"document {n}" for n in range(100)]), small, out
        )
    )
    other = _request(write_jsonl(tmp_path / "b.jsonl", ["hello"]), small, out)
    manifest = prepare(other, overwrite=True)
    assert [path.name for path in out.glob("chunk*")] == [manifest.chunks[0].name]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out"]


def test_unfinished_work_on_something_else_is_kept_unless_it_may_be_discarded(small, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello"}\n{"text": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        prepare(_request(path, small, tmp_path / "out", strict=True))
    other = _request(path, small, tmp_path / "out", strict=True, seed=1)
    with pytest.raises(UserError, match=r"unfinished .*seed: 0 then, 1 now.*--overwrite"):
        prepare(other)
    other = _request(path, small, tmp_path / "out", seed=1)
    assert prepare(other, overwrite=True).settings["seed"] == 1
