"""Corpora of a server: of Nemotron-CC and of the hub the right files, in a lasting
order.

As many are taken as needed; of a dataset those that a path names, by the right token.
"""

import gzip
import hashlib
import itertools
import json
import re
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from urllib.parse import quote, unquote

import pytest
import zstandard
from huggingface_hub import constants

from data_prep import corpora, download, fetching, input_files
from data_prep.corpora import hub_files, nemotron_files
from data_prep.download import Downloads
from data_prep.fetching import announce_downloads
from data_prep.input_files import Corpus, InputFile, RemoteFile
from data_prep.settings import PreparationSettings
from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.data.manifest import Manifest
from tests.conftest import contents
from tests.data_prep.conftest import interrupted_at_the_end, source, texts_of
from tests.data_prep.web import Fault, Web

ROOT = "contrib/Nemotron/Nemotron-CC/data-jsonl"
LIST = f"/{ROOT}.paths.gz"
FOLDERS = [
    "quality=high/kind=actual/kind2=actual",
    "quality=high/kind=synthetic/kind2=distill",
    "quality=medium/kind=actual/kind2=actual",
    "quality=low/kind=synthetic/kind2=wrap_medium",
]
SNAPSHOTS = [f"CC-MAIN-20{year}-{week}" for year in range(13, 23) for week in (10, 20)]
PATHS = [
    f"{ROOT}/{folder}/{snapshot}-part-{part:05}.jsonl.zstd"
    for folder, snapshot, part in itertools.product(FOLDERS, SNAPSHOTS, range(5))
]


def texts_in(path: str) -> list[str]:
    return [f"{path} document {n} " + "hello " * 20 for n in range(20)]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.01)
    with Web(
        {LIST: gzip.compress("".join(f"{path}\n" for path in PATHS).encode())}
    ) as web:
        yield web


@pytest.mark.parametrize(
    ("selection", "folders"),
    [
        ("", FOLDERS),
        ("kind=actual/quality=high", FOLDERS[:1]),
        ("kind2=actual", FOLDERS[::2]),
        ("quality=medium/", FOLDERS[2:3]),
    ],
)
def test_a_selection_takes_whole_components_in_any_order(
    web, tmp_path, selection, folders
):
    expected = [
        f"{web.url}/{path}"
        for path in PATHS
        if path.rpartition("/")[0].endswith(tuple(folders))
    ]
    found = [file.url for file in nemotron_files(selection, f"{web.url}/", tmp_path)]
    assert sorted(found) == sorted(expected)
    assert len(found) == 100 * len(folders)


def test_the_order_depends_on_the_paths_alone_and_spreads_over_the_snapshots(
    web, tmp_path
):
    everything = [file.name for file in nemotron_files("", web.url, tmp_path)]
    high = [file.name for file in nemotron_files("quality=high", web.url, tmp_path)]
    assert len(web.requests) == 1, "the list is fetched once"
    assert high == [name for name in everything if "quality=high/" in name]
    assert len({name.split("/")[-1].split("-part-")[0] for name in high[:20]}) >= 10
    web.files[LIST] = gzip.compress("\n".join(reversed(PATHS)).encode())
    assert [
        file.name for file in nemotron_files("", web.url, tmp_path / "b")
    ] == everything


@pytest.mark.parametrize(
    "content",
    [
        b"<html>log in</html>",
        gzip.compress(b"a/b\n"),
        b"\x1f\x8b",
        gzip.compress(f"{PATHS[0]}\n".encode() * 2000),
    ],
    ids=["page", "no corpus", "cut", "too long when decompressed"],
)
def test_a_list_that_is_none_is_refused_and_fetched_again(
    web, tmp_path, content, monkeypatch
):
    monkeypatch.setattr(corpora, "MOST_LIST_BYTES", 10**5)
    good, web.files[LIST] = web.files[LIST], content
    with pytest.raises(
        UserError, match=f"mirror '{web.url}'.* is not a gzipped list of paths"
    ):
        nemotron_files("", web.url, tmp_path)
    web.files[LIST] = good
    assert len(nemotron_files("", web.url, tmp_path)) == len(PATHS)


def test_a_list_without_end_is_refused(web, tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "MOST_LIST_BYTES", 10**5)
    web.fallback = Fault(endless=True)
    with pytest.raises(
        UserError, match=f"mirror '{web.url}': .* more than the 100,000 bytes"
    ):
        nemotron_files("", web.url, tmp_path)
    assert not list(tmp_path.rglob("*.gz*"))


@pytest.fixture
def order(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the default selection in the order in which they are taken; they are
    there."""
    files = nemotron_files("quality=high/kind=actual", web.url, tmp_path / "downloads")
    paths = [file.url.removeprefix(web.url) for file in files]
    for path in paths[:9]:
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts_in(path))
        web.files[path] = zstandard.compress(rows.encode())
    monkeypatch.setattr(corpora, "FILE_BYTES", len(web.files[paths[0]]))
    return paths[:9]


@pytest.fixture
def run(web: Web, order: list[str], small_folder: Path, tmp_path: Path):
    """Prepares from the server into tmp_path / NAME."""

    def prepare(name: str, *options: str) -> int:
        words = [
            "--source",
            "nemotron-cc",
            "--mirror",
            web.url,
            "--tokenizer",
            str(small_folder),
        ]
        return main(
            [
                "prepare",
                *words,
                "--workers",
                "1",
                "--out",
                str(tmp_path / name),
                *options,
            ]
        )

    return prepare


def test_as_many_files_are_taken_as_asked_for_or_as_the_tokens_need(
    order, run, web, tmp_path, capsys, monkeypatch
):
    assert run("one") == 0
    assert sorted(texts_of(tmp_path / "one")) == sorted(texts_in(order[0]))
    assert run("two", "--num-files", "2", "--tokens", "1M") == 0
    way_out = "no more; raise --num-files or raise its max_epochs in a recipe\n"
    assert way_out in capsys.readouterr().err
    assert sorted(texts_of(tmp_path / "two")) == sorted(
        [*texts_in(order[0]), *texts_in(order[1])]
    )
    # The first file was here already; the others were never asked for.
    assert [web.asked(path) for path in order] == [1, 1] + [0] * 7
    a_file = Manifest.read(tmp_path / "one").tokens
    # As if one token took a byte: these files compress far better than real ones.
    density = a_file / corpora.FILE_BYTES
    monkeypatch.setattr(input_files, "TOKENS_PER_STORED_BYTE", density)
    assert run("some", "--tokens", str(int(2.5 * a_file))) == 0
    manifest = Manifest.read(tmp_path / "some")
    assert 0 <= manifest.tokens - int(2.5 * a_file) < 200
    assert manifest.sources[0].read == 60
    assert [web.asked(path) for path in order] == [1, 1, 1] + [0] * 6


def test_a_server_that_stays_away_stops_the_run_and_a_missing_file_is_passed_over(
    order, run, web, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    web.faults[order[1]] = [Fault(503)] * 2
    missing = web.files.pop(order[2])
    assert run("out", "--num-files", "3") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"dualpath prepare: failed: {web.url}{order[1]}: 503 ")
    assert said.endswith("; the same command continues")
    assert not (tmp_path / "out").exists()
    assert run("out", "--num-files", "3") == 0
    assert len(texts_of(tmp_path / "out")) == 40
    assert web.asked(order[0]) == 1
    (fault,) = Manifest.read(tmp_path / "out").sources[0].faults
    assert fault.endswith(f"{Path(order[2]).name}: 404 Not Found")
    assert f"warning: nemotron-cc: {fault}" in capsys.readouterr().err
    assert run("out", "--num-files", "3") == 2
    assert "lacks what could not be downloaded" in capsys.readouterr().err
    web.files[order[2]] = missing
    assert run("out", "--num-files", "3", "--overwrite") == 0
    assert len(texts_of(tmp_path / "out")) == 60
    del web.files[order[2]]
    (
        tmp_path / "downloads" / "nemotron-cc" / order[2].removeprefix(f"/{ROOT}/")
    ).unlink()
    assert run("strict", "--num-files", "3", "--strict") == 2
    assert "404" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["jsonl.zstd", "gz"])  # of files, of their list
def test_a_glob_that_would_match_downloads_is_refused_before_they_are_there(
    order, web, small_folder, tmp_path, capsys, ending
):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = b"".join(b'{"text": "own %d"}\n' % n for n in range(9))
    (folder / "own.jsonl.zstd").write_bytes(zstandard.compress(rows))
    (folder / "own.jsonl.gz").write_bytes(gzip.compress(rows))

    def run(*options: str) -> int:
        own = f"own={folder}/**/*.{ending}"
        words = ["--source", own, "nemotron-cc", "--mirror", web.url]
        words += ["--tokenizer", str(small_folder), "--out", str(folder / "out")]
        return main(["prepare", *words, "--workers", "1", *options])

    assert run() == 2
    said = capsys.readouterr().err
    assert f"would match the download '{folder}/downloads/nemotron-cc/" in said
    assert not web.asked(order[0])
    elsewhere = ("--downloads", str(tmp_path / "elsewhere"))
    assert run(*elsewhere) == 0
    assert len(texts_of(folder / "out")) == 29
    assert run(*elsewhere) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_much_to_download_is_asked_about_and_a_small_disk_noticed_first(
    order, run, web, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(fetching, "ASK_ABOVE", 500)
    assert run("out", "--num-files", "3") == 2
    said = capsys.readouterr().err
    assert "downloads about" in said
    assert "--yes" in said
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "RECORD_BYTES_PER_TOKEN", 1e18)
        assert run("out") == 2
    assert "are needed and" in capsys.readouterr().err
    assert not any(web.asked(path) for path in order)
    assert run("out", "--num-files", "3", "--yes") == 0
    assert len(texts_of(tmp_path / "out")) == 60


def test_a_disk_that_an_interrupted_preparation_has_filled_is_enough_to_continue(
    run, tmp_path, capsys, monkeypatch
):
    with interrupted_at_the_end():
        assert run("out") == 130
    made = sum(map(len, contents(tmp_path / "out.partial").values()))
    monkeypatch.setattr(input_files, "TOKENS_PER_STORED_BYTE", 1.0)
    monkeypatch.setattr(fetching, "RECORD_BYTES_PER_TOKEN", 1e9 - 4)
    needed = round(corpora.FILE_BYTES * 1e9)
    monkeypatch.setattr(fetching, "_free_bytes", lambda out: needed - made)
    assert run("other") == 2
    assert "are needed and" in capsys.readouterr().err
    assert run("out") == 0


def test_each_disk_needs_room_for_what_comes_onto_it(
    run, tmp_path, capsys, monkeypatch
):
    size = corpora.FILE_BYTES
    free = {"out": 3 * size, "downloads": size - 1}
    monkeypatch.setattr(fetching, "_free_bytes", lambda folder: free[folder.name])

    def on_own_disk(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(stat=lambda: SimpleNamespace(st_dev=folder.name))

    monkeypatch.setattr(fetching, "_existing", on_own_disk)
    assert run("out") == 2
    assert f"--downloads '{tmp_path}/downloads': about " in capsys.readouterr().err
    free["downloads"] = size
    assert run("out") == 0
    said = capsys.readouterr().err
    assert re.search(r"takes about .* free at .*/out, .* free at .*/downloads\n", said)


def test_a_download_is_estimated_by_the_size_of_each_file(small, tmp_path, capsys):
    sizes = [1_000, 70_000, 70_000, 70_000]  # the first one is a rest
    files = []
    for number, size in enumerate(sizes):
        name = f"{number}.parquet"
        remote = RemoteFile(f"http://nowhere/{name}", name, size)
        files.append(InputFile(name, size, name, remote))
    own = source("a", f"hf:{DATASET}/data")
    settings = PreparationSettings((own,), "given", tokens=60_000)

    # At 0.5 to 0.8 tokens in a byte of Parquet.
    places = (tmp_path / "out", tmp_path / "downloads")
    corpus = Corpus(own, files)
    counts = announce_downloads(settings, [corpus], small, *places, yes=False)
    assert counts == [3]
    assert "downloads about 141.0 kB into " in capsys.readouterr().err


@pytest.mark.parametrize("max_epochs", [1, 1000])
def test_a_source_that_ends_the_mix_far_too_soon_is_named_first(
    max_epochs, small, tmp_path, capsys
):
    web = source("web", "web.jsonl", weight=9)
    few = source("few", "few.jsonl", weight=1, max_epochs=max_epochs)
    settings = PreparationSettings((web, few), "given", tokens=100_000)
    files = [InputFile("", size, "", tmp_path) for size in (10**6, 100)]
    corpora = [Corpus(web, files[:1]), Corpus(few, files[1:])]
    announce_downloads(settings, corpora, small, tmp_path, tmp_path, yes=False)
    warning = "source 'few' ends the mix at about 300 of 100,000 tokens"
    assert (warning in capsys.readouterr().err) == (max_epochs == 1)


# Datasets of the hub

DATASET = "owner/corpus"
SHA = "0123456789abcdef0123456789abcdef01234567"
INFO = f"/api/datasets/{DATASET}"
CHECK = f"{INFO}/auth-check"
TREE = [
    "README.md",
    ".gitattributes",
    "data/one/train-00000.parquet",
    "data/one/train-00001.parquet",
    "data/one/test-00000.parquet",
    "data/two/deep/a b.jsonl.zst",
    "data/two/c.jsonl",
]


def content_of(path: str) -> bytes:
    return f"content of {path}".encode()


def blob_of(content: bytes) -> str:
    """An object id that tells contents apart, as git's does."""
    return hashlib.sha1(content).hexdigest()


class Hub(Web):
    """Answers as the hub's API does for one dataset."""

    def lay_out(
        self, gated: str | bool = False, commit: str = SHA, more: bytes = b""
    ) -> None:
        """Lays out a commit, whose files end with `more`."""
        info = {"id": DATASET, "sha": commit, "gated": gated}
        folders = {
            str(folder) for path in TREE for folder in PurePosixPath(path).parents
        }
        tree = [
            {"type": "directory", "path": f, "oid": "0" * 40} for f in folders - {"."}
        ]
        for path in TREE:
            content = content_of(path) + more
            self.files[f"/datasets/{DATASET}/resolve/{commit}/{path}"] = content
            entry = {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": blob_of(content),
            }
            if not path.endswith((".jsonl", ".md")):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            tree.append(entry)
        self.files[INFO] = json.dumps(info).encode()
        self.files[CHECK] = b"{}"
        half = len(tree) // 2
        self.files[f"{INFO}/tree/{commit}"] = json.dumps(tree[:half]).encode()
        self.files[f"{INFO}/tree/{commit}/rest"] = json.dumps(tree[half:]).encode()
        page_two = f'<{self.url}{INFO}/tree/{commit}/rest?cursor=2>; rel="next"'
        self.faults[f"{INFO}/tree/{commit}"] = [Fault(headers={"Link": page_two})] * 9


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The hub, without a token."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        hub.lay_out()
        yield hub


def found(path: str) -> list[str]:
    root = f"/datasets/{DATASET}/resolve/{SHA}/"
    urls = [unquote(file.url) for file in hub_files(f"hf:{DATASET}{path}")]
    return [url.partition(root)[2] for url in urls]


def test_files_are_pinned_to_a_commit_with_their_sizes_and_hashes(hub, tmp_path):
    files = hub_files(f"hf:{DATASET}/data")
    for file, path in zip(files, sorted(TREE[2:]), strict=True):
        content = content_of(path)
        assert file.url == f"{hub.url}/datasets/{DATASET}/resolve/{SHA}/{quote(path)}"
        assert file.name == f"huggingface/{DATASET}/{blob_of(content)[:12]}/{path}"
        sha256 = (
            None if path.endswith(".jsonl") else hashlib.sha256(content).hexdigest()
        )
        assert (file.size, file.sha256, file.token) == (len(content), sha256, None)
        assert Downloads(tmp_path).get(file).read_bytes() == content


def test_a_commit_that_changes_no_file_of_a_source_keeps_its_request(hub, ask):
    def request() -> str:
        return ask((source("a", f"hf:{DATASET}/data"),)).digest

    before = request()
    hub.lay_out(commit="a" * 40)
    assert request() == before
    hub.lay_out(commit="b" * 40, more=b"\n")
    assert request() != before


ONE = TREE[2:4]
TWO = sorted(TREE[5:])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/one/train-*", ONE),
        ("/data/*/train-0000[01].*", ONE),
        ("/data/two", TWO),
        ("/data/two/", TWO),
        ("/data/two/**", TWO),
        ("/data/two/*", ["data/two/c.jsonl"]),
        ("/data/two/c.jsonl", ["data/two/c.jsonl"]),
        ("/**/*.jsonl", ["data/two/c.jsonl"]),
    ],
)
def test_a_path_is_a_file_a_folder_or_a_glob(hub, path, expected):
    assert found(path) == expected


@pytest.mark.parametrize("path", ["", "/", "/data/tw", "/data/one/t?", "/README.md"])
def test_a_path_without_rows_is_told_what_there_is(hub, path):
    with pytest.raises(UserError) as caught:
        found(path)
    assert str(caught.value) == (
        f"source 'hf:{DATASET}{path}' names no .parquet, .jsonl or .ndjson file; give "
        f"hf:{DATASET}/PATH, where PATH is a folder or a glob in the dataset; it has "
        "data/one/*.parquet, data/two/*.jsonl, data/two/deep/*.jsonl.zst"
    )


@pytest.mark.parametrize("page", [TREE, []], ids=["of files", "of nothing"])
def test_a_dataset_whose_list_of_pages_never_ends_is_refused(hub, page, monkeypatch):
    monkeypatch.setattr(corpora, "MOST_FILES", 30)
    # a busy machine may take a second for a page of files
    monkeypatch.setattr(corpora, "LIST_SECONDS", 300.0 if page else 1.0)
    tree = f"{INFO}/tree/{SHA}"
    entries = [
        {"type": "file", "path": path, "size": 1, "oid": "0" * 40} for path in page
    ]
    hub.files[tree] = json.dumps(entries).encode()
    hub.fallback = Fault(headers={"Link": f'<{hub.url}{tree}?cursor=2>; rel="next"'})
    hub.faults.clear()
    bound = "has more than 30 entries" if page else "takes more than 1 s"
    with pytest.raises(
        UserError, match=f"dataset '{DATASET}': its list of files at .* {bound}"
    ):
        found("")


@pytest.mark.parametrize("token", ["hf_mine", None, "hf_other"])
def test_a_gated_dataset_needs_a_token_with_access_or_says_what_to_do(
    hub, monkeypatch, token
):
    hub.lay_out(gated="auto")
    hub.tokens[CHECK] = "hf_mine"
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if token == "hf_mine":
        assert {file.token for file in hub_files(f"hf:{DATASET}/data")} == {token}
        return
    with pytest.raises(UserError) as caught:
        found("/data")
    message = str(caught.value)
    answer = f"answered {403 if token else 401}"
    for part in (
        answer,
        f"at {hub.url}/datasets/{DATASET}, accept its terms",
        "hf auth login",
    ):
        assert part in message
    assert "\n" not in message
    assert "hf_other" not in message
