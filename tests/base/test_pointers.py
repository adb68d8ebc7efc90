"""A pointer of Git LFS or git-annex is refused by name wherever a file is read."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.corpora import find_corpus
from data_prep.settings import SourceSettings
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.pointers import StandIn, refuse_pointer
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.command import read_prompts
from dualpath_cli.evaluation.benchmarks import Benchmark
from dualpath_cli.export.hf.pretrained_files import Files
from dualpath_cli.recipe import recipes
from dualpath_cli.run.checkpoint_files import fault_of
from dualpath_cli.run.trained import find_trained as find_run
from dualpath_cli.run.weights import tensors_in, verify

LFS = (
    f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 12345\n"
)
KEY = f"SHA256E-s12345--{'0a' * 32}.jsonl.gz"
POINTERS = {
    "LFS": LFS,
    "LFS on Windows": LFS.replace("\n", "\r\n"),
    "LFS of an extension": LFS.replace("oid", f"ext-0-case sha256:{'0b' * 32}\noid", 1),
    "LFS of its first name": LFS.replace("git-lfs", "hawser"),
    "annex": f"/annex/objects/{KEY}\n",
    "annex of an address": "/annex/objects/URL--https&c%%example.org%a.txt\n",
    "annex without links": f"../../.git/annex/objects/Xk/7w/{KEY}/{KEY}",
}
COMMANDS = {"LFS": "`git lfs pull`", "annex": "`git annex get`"}


@pytest.mark.parametrize("kind", POINTERS)
def test_a_pointer_is_named_with_the_command_that_gets_the_file(kind, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(POINTERS[kind].encode())
    with pytest.raises(StandIn, match=r"a\.txt is a pointer of ") as caught:
        refuse_pointer(path)
    assert COMMANDS[kind.split()[0]] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"As written:\n\n{LFS}",
        f"{LFS}\nThe first line is the version.\n",
        LFS[:60],
        LFS.replace("size", "sizes"),
        "/annex/objects/ holds the keys.\n",
        f"{LFS}{LFS}",
        LFS + "\n" * (1 << 15),
    ],
)
def test_a_text_about_pointers_is_a_text(text, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    assert list(read_documents(Source("a", tmp_path / "a.txt"))) == [text]


def test_a_link_of_git_annex_to_a_file_that_is_not_there_is_a_pointer(tmp_path):
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "a.txt").symlink_to(f".git/annex/objects/Xk/7w/{KEY}/{KEY}")
    for place in (tmp_path, tmp_path / "a.txt", tmp_path / "*.txt"):
        with pytest.raises(StandIn, match="git annex get"):
            list(read_documents(Source("a", place)))
    file = tmp_path / ".git/annex/objects/Xk/7w" / KEY / KEY
    file.parent.mkdir(parents=True)
    file.write_text("a")
    assert list(read_documents(Source("a", tmp_path))) == ["a", "b"]


def write(path: Path, text: str = LFS) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def benchmark(folder: Path, **files: str) -> object:
    texts = {"piqa.jsonl": "{}\n", "piqa.fewshot.txt": "a\n\n"} | files
    for name, text in texts.items():
        write(folder / name, text)
    return Benchmark("piqa").local([folder])


READERS: dict[str, Callable[[Path], object]] = {
    "a text": lambda at: list(read_documents(Source("a", write(at / "a.txt")))),
    "rows": lambda at: list(read_documents(Source("gsm8k", write(at / "a.jsonl")))),
    "compressed rows": lambda at: list(
        read_documents(Source("a", write(at / "a.jsonl.gz")))
    ),
    "records": lambda at: list(read_documents(Source("a", write(at / "a.parquet")))),
    "a folder": lambda at: list(
        read_documents(Source("a", write(at / "f/a.md").parent))
    ),
    "a corpus, before any work": lambda at: find_corpus(
        SourceSettings("a", str(write(at / "a.txt"))), at, "", None
    ),
    "prompts": lambda at: read_prompts((), str(write(at / "a.txt"))),
    "a recipe": lambda at: recipes.load_recipe(str(write(at / "a.yaml"))),
    "a tokenizer": lambda at: Tokenizer.load(write(at / "tokenizer.json")),
    "a tokenizer's folder": lambda at: Tokenizer.load(
        write(at / "tokenizer.json").parent
    ),
    "a benchmark": lambda at: benchmark(at, **{"piqa.jsonl": LFS}),
    "worked examples": lambda at: benchmark(at, **{"piqa.fewshot.txt": LFS}),
    "weights": lambda at: tensors_in(write(at / "model.safetensors").parent),
    "a pretrained model": lambda at: Files(
        write(at / "model.safetensors").parent, None, "small"
    ),
    "a GGUF file": lambda at: Files(write(at / "a.gguf").parent, "a.gguf", "small"),
    "an exported folder": lambda at: find_run(str(write(at / "config.json").parent)),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_a_pointer_for_the_file(reader, tmp_path):
    with pytest.raises(StandIn, match=r"is a pointer of Git LFS, .* `git lfs pull`"):
        READERS[reader](tmp_path)


@pytest.mark.parametrize(
    "name", ["manifest.json", "index.json", "tokenizer.json", "chunk"]
)
def test_a_data_folder_with_a_pointer_is_refused_by_it(name, data):
    path = max(data.glob("*.bin")) if name == "chunk" else data / name
    path.write_text(LFS)
    with pytest.raises(StandIn, match=rf"{path.name} is a pointer"):
        check(data)


def check(folder: Path) -> None:
    manifest = Manifest.read(folder)
    manifest.check_files(folder)
    manifest.check_tokenizer(folder)


def test_a_checkpoint_with_pointers_is_refused_by_them(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained(), run, symlinks=True)
    checkpoint = (run / "checkpoints" / "last").resolve()
    whole = max(checkpoint.glob("*.safetensors")).read_bytes()
    max(checkpoint.glob("*.safetensors")).write_text(LFS)
    assert "is a pointer of Git LFS" in fault_of(checkpoint)
    with pytest.raises(UserError, match="is a pointer of Git LFS"):
        verify(checkpoint)
    max(checkpoint.glob("*.safetensors")).write_bytes(whole)
    assert fault_of(checkpoint) is None

    # A file that the manifest does not list would be compared with nothing.
    manifest = checkpoint.parent / "manifests" / f"{checkpoint.name}.json"
    content = json.loads(manifest.read_text())
    for name in list(content["files"]):
        short = {"files": {n: f for n, f in content["files"].items() if n != name}}
        manifest.write_text(json.dumps(content | short))
        if name == "state.json" or name.endswith(".safetensors"):
            assert fault_of(checkpoint) == f"{manifest.name} does not list {name}"


def test_text_in_a_compressed_file_is_no_pointer(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(LFS.encode()))
    assert list(read_documents(Source("a", tmp_path / "a.txt.gz"))) == [LFS]
