"""The data folder: what others have in its way stays; a prefix with a manifest is a whole one."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from data_prep import encoding
from data_prep.out_folder import finished_remote, upload
from data_prep.prepare import finished
from dualpath_cli.base.errors import UserError
from dualpath_cli.data import storage
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from tests.data.faulty_data import intact, manifest_of, source_count
from tests.data_prep.conftest import contents, prepare, write_jsonl

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


def test_a_strangers_file_in_a_data_folder_is_not_deleted(ask, out, tmp_path):
    prepare(ask(TEXTS))
    (out / "notes").mkdir()
    (out / "notes" / "thesis.tex").write_text("mine")
    other = ask(write_jsonl(tmp_path / "b.jsonl", TEXTS))
    with pytest.raises(UserError, match=r"holds 'notes/thesis.tex', which is no data"):
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
        with pytest.raises(UserError, match="not a data folder"):
            finished(asked, overwrite)
    assert [path.name for path in out.iterdir()] == ["manifest.json"]
    out.rename(tmp_path / "page")
    assert intact(prepare(asked), out)


def test_unfinished_work_of_another_purpose_is_never_discarded(ask, tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.tex").write_text("mine")
    asked = ask(TEXTS)
    with pytest.raises(UserError, match="holds something else; move it"):
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
    with pytest.raises(UserError, match="line 2"):
        prepare(ask(path, strict=True), overwrite=True)
    left = contents(tmp_path / "out.partial")
    assert finished(other, overwrite=False) is not None
    assert contents(tmp_path / "out.partial") == left != {}


def test_unfinished_work_that_was_damaged_is_made_again(ask, out, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 100)
    asked = ask([*(f"text {n} " * 5 for n in range(12)), "", *TEXTS], val_fraction=0.2)
    partial, kept = tmp_path / "out.partial", tmp_path / "kept"

    def killed(manifest: Manifest, folder: Path) -> None:
        shutil.copytree(partial, kept)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", killed)
        with pytest.raises(KeyboardInterrupt):
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
    shutil.copytree(kept, partial)
    (partial / "request.json").write_bytes(b"{\xff")
    shutil.rmtree(out)
    with pytest.raises(UserError, match=r"is wanted for unfinished work and holds"):
        prepare(asked)


URL = "s3://bucket/data"


@pytest.fixture
def folder(tmp_path: Path, small: Tokenizer) -> Path:
    return write(tmp_path / "folder", small, [b"12345678", b"9876"], {"val/a.jsonl": b"{}"})


def write(folder: Path, tokenizer: Tokenizer, chunks: list[bytes], beside: dict[str, bytes]) -> Any:
    """A data folder of the given chunks and files."""
    contents = {f"chunk-0-{i}.bin": chunk for i, chunk in enumerate(chunks)} | beside
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "index.json").write_text(json.dumps([len(chunk) for chunk in chunks]))
    tokenizer.save(folder)
    tokens = sum(map(len, chunks)) // 2
    sources = [source_count("novels", documents=1, tokens=tokens)]
    counts = {"documents": 1, "tokens": tokens, "text_bytes": tokens}
    manifest_of(folder, tokenizer, sources=sources, **counts).write(folder)
    return folder


@contextmanager
def killed_after(uploads: int) -> Iterator[None]:
    """Ends an upload when it has sent so many files."""
    send, left = storage.upload, iter(range(uploads))

    def send_or_die(*arguments: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        send(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "upload", send_or_die)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the objects that are uploaded, in their order."""
    names: list[str] = []
    send = storage.upload

    def watched(path: Path, url: str, *rest: Any) -> None:
        send(path, url, *rest)
        names.append(url.removeprefix(f"{URL}/"))

    monkeypatch.setattr(storage, "upload", watched)
    return names


def quietly(count: int) -> None:
    """Hears of bytes and says nothing."""


def test_every_file_is_uploaded_and_the_manifest_last(bucket, folder, sent):
    (folder / "rejected.jsonl.zst").write_bytes(b"x")
    counts: list[int] = []
    assert finished_remote(URL) is None
    upload(folder, URL, counts.append)
    assert sent == [
        "chunk-0-0.bin", "chunk-0-1.bin", "rejected.jsonl.zst", "val/a.jsonl", "index.json",
        "tokenizer.json", "manifest.json",
    ]  # fmt: skip
    assert storage.sizes(URL) == storage.sizes(folder)
    assert sum(counts) == sum(storage.sizes(folder).values())
    manifest = finished_remote(URL)
    assert manifest == Manifest.read(folder)
    assert intact(manifest, URL)


@pytest.mark.parametrize("after", range(6))
def test_a_killed_upload_has_no_manifest_and_goes_on_where_it_was(bucket, folder, sent, after):
    with killed_after(after):
        upload(folder, URL, quietly)
    assert finished_remote(URL) is None
    counts: list[int] = []
    upload(folder, URL, counts.append)
    sizes = storage.sizes(folder) or {}
    assert len(sent) == len(set(sent)) == len(sizes)
    assert sum(counts) == sum(sizes.values()), "those of files that were there, too"
    assert finished_remote(URL) == Manifest.read(folder)


def test_an_object_of_equal_size_and_other_content_is_replaced(bucket, folder, sent):
    bucket.put_object(Bucket="bucket", Key="data/chunk-0-1.bin", Body=b"0000")
    upload(folder, URL, quietly)
    assert "chunk-0-1.bin" in sent
    assert intact(Manifest.read(URL), URL)


def test_other_data_are_replaced_only_on_request(bucket, folder, tmp_path, small):
    chunks = [b"11111111", b"9876", b"2222"]
    before = write(tmp_path / "before", small, chunks, {"val/b.jsonl": b"{}"})
    upload(before, URL, quietly)
    with pytest.raises(UserError) as caught:
        upload(folder, URL, quietly)
    assert "'s3://bucket/data' holds other data (8 tokens of novels, fingerpr" in str(caught.value)
    assert "--overwrite" in str(caught.value)
    assert finished_remote(URL) == Manifest.read(before), "untouched"
    bucket.put_object(Bucket="bucket", Key="data/notes.md", Body=b"mine")
    upload(folder, URL, quietly, overwrite=True)
    assert finished_remote(URL) == Manifest.read(folder)
    expected = {**(storage.sizes(folder) or {}), "notes.md": 4}
    assert storage.sizes(URL) == expected, "stale chunks are gone, what no manifest named stays"
    assert intact(Manifest.read(URL), URL)


def test_the_manifest_of_other_data_goes_before_anything_else(bucket, folder, tmp_path, small):
    upload(write(tmp_path / "before", small, [b"1111"] * 3, {}), URL, quietly)
    with killed_after(0):
        upload(folder, URL, quietly, overwrite=True)
    assert finished_remote(URL) is None
    assert storage.sizes(URL) is not None
    upload(folder, URL, quietly, overwrite=True)
    assert storage.sizes(URL) == storage.sizes(folder)


@pytest.mark.parametrize("name", ["thesis.pdf", "chunk-0-7.bin", "index.json"])
def test_a_prefix_of_another_purpose_is_left_alone(bucket, folder, name):
    bucket.put_object(Bucket="bucket", Key=f"data/{name}", Body=b"?")
    with pytest.raises(UserError, match=f"holds '{name}', which does not belong .*another prefix"):
        upload(folder, URL, quietly)
    assert storage.sizes(URL) == {name: 1}


def test_a_chunk_that_changed_on_the_disk_is_not_uploaded(bucket, folder):
    (folder / "chunk-0-1.bin").write_bytes(b"0000")
    with pytest.raises(UserError, match=r"chunk-0-1\.bin: changed since it was prepared"):
        upload(folder, URL, quietly)
    assert finished_remote(URL) is None
