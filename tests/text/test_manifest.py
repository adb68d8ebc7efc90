"""Manifest: what was prepared is found again, and what changed since is named."""

import dataclasses
from pathlib import Path

import pytest

from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer
from tests.manifests import intact, write_data_folder


@pytest.fixture
def folder(tmp_path: Path, small: Tokenizer) -> Path:
    """A data folder of two chunks and a file beside them."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "rejected.jsonl.zst").write_bytes(b"rejected" * 10)
    write_data_folder(folder, range(60), small, chunk_tokens=30)
    return folder


def test_what_is_written_is_read(folder):
    manifest = Manifest.read(folder)
    assert intact(manifest, folder)
    assert (manifest.tokens, manifest.sources[0].name) == (60, "a")
    before = (folder / "manifest.json").read_bytes()
    manifest.write(folder)
    assert (folder / "manifest.json").read_bytes() == before


def test_the_fingerprint_is_that_of_the_tokens_alone(folder):
    manifest = Manifest.read(folder)
    elsewhere = dataclasses.replace(manifest, request="other", sources=[])
    assert elsewhere.fingerprint == manifest.fingerprint
    decisive = {"dtype": "uint32", "tokenizer": "x", "eot_id": 0, "chunks": manifest.chunks[:1]}
    for name, value in decisive.items():
        other = dataclasses.replace(manifest, **{name: value})
        assert other != manifest
        assert other.fingerprint != manifest.fingerprint, name
