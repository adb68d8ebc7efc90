"""Sources: every format gives the same texts, as a stream, and mistakes name their
place."""

import errno
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import Source, clean, parse_source, read_documents

TEXTS = ["one\ntwo\n", "", "é 日本 \U0001f600", "last"]


def write(path: Path, texts: list[str]) -> Path:
    """Writes texts as the file's extension says; a .txt file holds them joined."""
    if path.suffix == ".parquet":
        ids, column = pa.array(range(len(texts))), pa.array(texts, pa.string())
        pq.write_table(pa.table({"id": ids, "text": column}), path)
        return path
    if {".txt", ".md"} & set(path.suffixes):
        data = "".join(texts).encode()
    else:
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix in (".zst", ".zstd"):
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


JSONL = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.zstd"]
ONE_TEXT = ["a.txt", "a.txt.gz", "a.txt.zst", "a.md", "a.md.gz"]


@given(st.sampled_from([*JSONL, "a.parquet"]), st.lists(st.text(), max_size=20))
@example("a.parquet", TEXTS)
def test_a_row_is_a_document(tmp_path_factory, name, texts):
    source = parse_source(str(write(tmp_path_factory.mktemp("texts") / name, texts)))
    assert source.name == "a"
    assert list(read_documents(source)) == list(map(clean, texts))


@pytest.mark.parametrize("name", ONE_TEXT)
def test_a_plain_file_is_one_document_with_its_line_ends(tmp_path, name):
    source = parse_source(str(write(tmp_path / name, TEXTS)))
    assert list(read_documents(source)) == ["".join(TEXTS)]


def test_a_folder_is_all_its_readable_files_in_order_and_markdown_describes_rows(
    tmp_path,
):
    (tmp_path / "b").mkdir()
    write(tmp_path / "a.md", ["first"])
    write(tmp_path / "b" / "1.txt", ["second"])
    write(tmp_path / "c.md.gz", ["third"])
    (tmp_path / "d.bin").write_bytes(b"\xff")
    source = parse_source(f"all={tmp_path}")
    assert source == Source("all", tmp_path)
    assert list(read_documents(source)) == ["first", "second", "third"]
    write(tmp_path / "b" / "0.parquet", ["one", "two"])
    assert list(read_documents(source)) == ["one", "two", "second"]


def test_a_folder_and_a_glob_take_each_real_file_once_and_say_what_they_leave_out(
    tmp_path, capsys
):
    folder, elsewhere = tmp_path / "x", tmp_path / "elsewhere"
    for place in (folder / "b" / ".ipynb_checkpoints", elsewhere):
        place.mkdir(parents=True)
    for name in ("a.jsonl", "b/C.JSONL", "b/.ipynb_checkpoints/C.jsonl", "d.ndjson"):
        write(folder / name, [name])
    (folder / "._a.jsonl").write_bytes(b"\0\5\x16\7")
    for name in ("e.md", "f.bz2", "g.BZ2", "h"):
        (folder / name).write_text(name)
    write(elsewhere / "i.jsonl.gz", ["behind a link"])
    (folder / "b" / "link").symlink_to(elsewhere)
    for name in ("circle", "b/circle", "b/to the other"):
        (folder / name).symlink_to(folder)
    (folder / "again.jsonl").symlink_to("d.ndjson")
    (folder / "gone.jsonl").symlink_to("nowhere")
    texts = ["a.jsonl", "d.ndjson", "b/C.JSONL", "behind a link"]
    said = "2 .bz2, 2 hidden, 1 no file, 1 linked again, 1 without suffix, 1 .md"
    assert list(read_documents(parse_source(str(folder)))) == texts
    assert capsys.readouterr().err == f"left out of {folder}: {said}\n"
    assert list(read_documents(parse_source(f"x={folder}/**/*[nN]*"))) == texts
    assert (
        capsys.readouterr().err
        == f"left out of {folder}/**/*[nN]*: 1 no file, 1 linked again\n"
    )


def test_a_folder_that_may_not_be_read_is_named_and_a_failing_disk_ends_the_command(
    tmp_path, monkeypatch, capsys
):
    write(tmp_path / "a.txt", ["text"])
    (tmp_path / "closed").mkdir()
    scandir = os.scandir
    number = errno.EACCES

    def failing(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "closed":
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    source = Source("x", tmp_path)
    assert list(read_documents(source)) == ["text"]
    said = f"left out: '{tmp_path}/closed' (Permission denied)\n"
    assert capsys.readouterr().err == said
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        list(read_documents(source))


def test_of_many_kinds_that_are_left_out_ten_are_named(tmp_path, capsys):
    write(tmp_path / "a.txt", ["text"])
    for number in range(30):
        (tmp_path / f"b.kind{number:02}").touch()
    parse_source(f"x={tmp_path}")
    said = capsys.readouterr().err
    assert said.count("1 .kind") == 10
    assert said.endswith(" and 20 more\n")


@pytest.mark.parametrize("name", ["a.json", "*.json", "**/*.json.gz"])
def test_json_that_is_not_lines_is_refused_and_told_how_to_become_so(tmp_path, name):
    (tmp_path / "a.json").write_text('{"text": "row"}\n')
    with pytest.raises(
        UserError, match=r"rename a \.json file to \.jsonl if each line"
    ):
        parse_source(f"x={tmp_path}/{name}")


def test_a_pipe_is_not_read_as_a_source(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl' is a pipe or a device, not a file"):
        parse_source(f"x={tmp_path}/a.jsonl")


def test_a_dataset_of_the_hub_is_answered_by_the_way_to_fetch_it():
    """`prepare --decontaminate` asks so, too: the message names its other option."""
    with pytest.raises(
        UserError, match=r"`dualpath prepare --source` .* `hf download OWNER"
    ):
        parse_source("gsm8k=hf:openai/gsm8k/main")


def test_the_working_directory_is_a_source_and_no_path_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", ["a text"])
    source = parse_source(".")
    assert source.name == tmp_path.name
    assert list(read_documents(source)) == ["a text"]
    for spec in ("", "a="):
        with pytest.raises(UserError, match=f"source '{spec}' has no path"):
            parse_source(spec)


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with texts of several formats."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "folder.rst").mkdir()
    for name in ("docs/b.rst", "docs/deep/a.rst", "docs/.hidden.rst", "docs/x.py"):
        (tmp_path / name).write_text(f"text of {name}\n")
    write(tmp_path / "docs" / "rows.jsonl.gz", ["one", "two"])
    write(tmp_path / "docs" / "a[1].txt", ["of a file"])
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "name", "texts"),
    [
        ("docs/a[1].txt", "a[1]", ["of a file"]),
        (
            "notes=docs/**/*.rst",
            "notes",
            ["text of docs/b.rst\n", "text of docs/deep/a.rst\n"],
        ),
        (
            "docs/*.[jpr]*",
            "docs",
            ["text of docs/b.rst\n", "one", "two", "text of docs/x.py\n"],
        ),
    ],
)
def test_a_glob_takes_any_text_a_file_a_document(manual, spec, name, texts):
    source = parse_source(spec)
    assert source.name == name
    assert list(read_documents(source)) == texts


@pytest.mark.parametrize(
    "compress", [gzip.compress, zstandard.ZstdCompressor().compress]
)
def test_files_of_several_compressed_parts_are_read_to_the_end(tmp_path, compress):
    suffix = ".gz" if compress is gzip.compress else ".zst"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(b'{"text": "one"}\n') + compress(b'{"text": "two"}\n'))
    assert list(read_documents(parse_source(str(path)))) == ["one", "two"]


RENDERED = [
    (
        "gsm8k",
        {"question": "1+1?", "answer": "It is 2.\n#### 2"},
        "1+1?",
        "It is 2.\n#### 2",
    ),
    *(
        ("triviaqa", {"question": "Who?", "answer": answer}, "Who?", "Ada")
        for answer in ("Ada", ["Ada", "A. L."], {"value": "Ada", "aliases": []})
    ),
    (
        "arc",
        {"query": "Question: Why?\nAnswer:", "choices": ["No.", "So."], "gold": 1},
        "Why?",
        "So.",
    ),
]


@pytest.fixture(params=["rows.jsonl", "rows.parquet"])
def write_row(request, tmp_path) -> Callable[[dict], Path]:
    """Writes a row to a file of either kind."""

    def write_as_kind(row: dict) -> Path:
        path = tmp_path / request.param
        if path.suffix == ".jsonl":
            path.write_text(json.dumps(row))
        else:
            pq.write_table(pa.Table.from_pylist([row]), path)
        return path

    return write_as_kind


@pytest.mark.parametrize(("name", "row", "question", "answer"), RENDERED)
def test_known_names_are_rendered_as_question_and_answer(
    write_row, name, row, question, answer
):
    texts = list(read_documents(parse_source(f"{name}={write_row(row)}")))
    assert texts == [f"Question: {question}\nAnswer: {answer}"]


@pytest.mark.parametrize("name", ["gsm8k", "triviaqa", "arc"])
def test_held_out_texts_of_a_known_name_are_read_under_that_name(tmp_path, name):
    path = tmp_path / f"{name}.jsonl"
    texts = ["Question: 1+1?\nAnswer: 2"]
    path.write_text(json.dumps({"id": None, "text": texts[0]}))
    assert list(read_documents(parse_source(str(path)))) == texts
    path.write_text('{"id": null}')
    with pytest.raises(UserError, match=r"no field '(question|query)'"):
        list(read_documents(parse_source(str(path))))
