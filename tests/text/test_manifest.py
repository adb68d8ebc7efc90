"""Manifest: what was prepared is found again, and what changed since is named."""

import dataclasses
import json
from pathlib import Path

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer
from tests.manifests import manifest_of, source_count


@pytest.fixture
def folder(tmp_path: Path, small: Tokenizer) -> Path:
    """A data folder of two chunks."""
    files = {
        "chunk-0-0.bin": b"12345678",
        "chunk-0-1.bin": b"9876",
        "rejected.jsonl.zst": b"rejected",
        "index.json": b"{}",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    small.save(tmp_path)
    manifest_of(
        tmp_path,
        small,
        documents=2,
        tokens=6,
        text_bytes=9,
        sources=[source_count("a", documents=2, tokens=6, text_bytes=9)],
    ).write(tmp_path)
    return tmp_path


def test_what_is_written_is_read(folder):
    manifest = Manifest.read(folder)
    manifest.verify(folder)
    assert (manifest.tokens, manifest.sources[0].name) == (6, "a")
    before = (folder / "manifest.json").read_bytes()
    manifest.write(folder)
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("name", ["chunk-0-1.bin", "rejected.jsonl.zst"])
def test_a_flipped_byte_is_found_by_verify(folder, name):
    path = folder / name
    data = bytearray(path.read_bytes())
    data[1] ^= 1
    path.write_bytes(data)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    with pytest.raises(UserError, match=rf"{name}: changed .*--overwrite"):
        manifest.verify(folder)


def test_an_edited_manifest_is_found(folder):
    content = json.loads((folder / "manifest.json").read_text())
    content["chunks"].pop()
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="fingerprint does not fit"):
        Manifest.read(folder)


def test_another_tokenizer_is_found_by_verify(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|end_of_text|>"))
    with pytest.raises(UserError, match="not the tokenizer of these tokens"):
        Manifest.read(folder).verify(folder)


def test_a_missing_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match=r"does not exist; make it with .* --out"):
        Manifest.read(tmp_path / "none")


def test_the_fingerprint_is_that_of_the_tokens_alone(folder):
    manifest = Manifest.read(folder)
    elsewhere = dataclasses.replace(manifest, request="other", sources=[])
    assert elsewhere.fingerprint == manifest.fingerprint
    for change in ({"dtype": "uint32"}, {"tokenizer": "x"}, {"chunks": manifest.chunks[:1]}):
        assert dataclasses.replace(manifest, **change).fingerprint != manifest.fingerprint
