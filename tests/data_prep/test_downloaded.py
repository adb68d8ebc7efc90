"""Nemotron-CC of a server: the files of a selection, in a lasting order, as many as needed."""

import gzip
import itertools
import json
from pathlib import Path

import pytest
import zstandard

from data_prep.__main__ import main
from data_prep.download import transfer
from data_prep.sources import fetching
from data_prep.sources.corpora import nemotron_files
from dualpath_cli.errors import UserError
from dualpath_cli.text.manifest import Manifest
from tests.data_prep.preparing import texts_of
from tests.data_prep.web import Fault, Web

ROOT = "contrib/Nemotron/Nemotron-CC"
LIST = f"/{ROOT}/data-jsonl.paths.gz"
FOLDERS = [
    "quality=high/kind=actual/kind2=actual",
    "quality=high/kind=synthetic/kind2=distill",
    "quality=high/kind=synthetic/kind2=wrap_medium",
    "quality=medium-high/kind=actual/kind2=actual",
    "quality=medium/kind=actual/kind2=actual",
    "quality=low/kind=synthetic/kind2=wrap_medium",
]
SNAPSHOTS = [f"CC-MAIN-20{year}-{week}" for year in range(13, 23) for week in (10, 20)]
PATHS = [
    f"{ROOT}/data-jsonl/{folder}/{snapshot}-part-{part:05}.jsonl.zstd"
    for folder, snapshot, part in itertools.product(FOLDERS, SNAPSHOTS, range(5))
]


@pytest.fixture
def listed():
    with Web({LIST: gzip.compress("".join(f"{path}\n" for path in PATHS).encode())}) as web:
        yield web


def files(listed, selection, folder):
    return nemotron_files(selection, listed.url, folder)


@pytest.mark.parametrize(
    ("selection", "folders"),
    [
        ("", FOLDERS),
        ("kind=actual/quality=high", FOLDERS[:1]),
        ("kind2=wrap_medium", [FOLDERS[2], FOLDERS[5]]),
        ("quality=medium/", FOLDERS[4:5]),
    ],
)
def test_a_selection_takes_whole_components_in_any_order(listed, tmp_path, selection, folders):
    expected = {
        f"{listed.url}/{path}" for path in PATHS if path.rpartition("/")[0].endswith(tuple(folders))
    }
    found = [file.url for file in files(listed, selection, tmp_path)]
    assert set(found) == expected
    assert len(found) == len(expected) == 100 * len(folders)


def test_the_order_depends_on_nothing_but_the_paths(listed, tmp_path):
    everything = [file.name for file in files(listed, "", tmp_path)]
    high = [file.name for file in files(listed, "quality=high", tmp_path)]
    assert high == [name for name in everything if "quality=high/" in name]
    listed.files[LIST] = gzip.compress("\n".join(reversed(PATHS)).encode())
    assert [file.name for file in files(listed, "", tmp_path / "other")] == everything


def test_the_first_files_are_spread_over_the_snapshots(listed, tmp_path):
    first = files(listed, "quality=high/kind=actual", tmp_path)[:20]
    assert len({file.name.split("/")[-1].split("-part-")[0] for file in first}) >= 10


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_list_is_fetched_once(listed, tmp_path, slash):
    found = [nemotron_files("", listed.url + slash, tmp_path) for _ in range(2)]
    assert found[0] == found[1]
    assert [request.path for request in listed.requests] == [LIST]


@pytest.mark.parametrize(
    "content",
    [b"<html>please log in</html>", gzip.compress(b"a/b\n"), gzip.compress(b""), b"\x1f\x8b\x08"],
    ids=["page", "no corpus", "empty", "cut"],
)
def test_a_list_that_is_none_is_refused_and_fetched_again(listed, tmp_path, content):
    good, listed.files[LIST] = listed.files[LIST], content
    with pytest.raises(UserError, match=f"mirror '{listed.url}'.* is not a gzipped list of paths"):
        files(listed, "", tmp_path)
    listed.files[LIST] = good
    assert len(files(listed, "", tmp_path)) == len(PATHS)


FILES = [
    f"{ROOT}/data-jsonl/quality={quality}/kind=actual/kind2=actual/CC-MAIN-{n}-part-00000.jsonl.zstd"
    for quality, count in (("high", 6), ("low", 2))
    for n in range(count)
]


def texts_in(path: str) -> list[str]:
    return [f"{path} document {n} " + "hello " * 20 for n in range(20)]


def _file(path: str) -> bytes:
    rows = [
        {"warc_record_id": f"<urn:uuid:{path}-{n}>", "text": text}
        for n, text in enumerate(texts_in(path))
    ]
    return zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer, "FIRST_WAIT_SECONDS", 0.01)
    files = {f"/{path}": _file(path) for path in FILES}
    files[f"/{ROOT}/data-jsonl.paths.gz"] = gzip.compress("\n".join(FILES).encode())
    with Web(files) as web:
        yield web


@pytest.fixture
def run(web: Web, small_folder: Path, tmp_path: Path):
    """Prepares from the server into tmp_path / NAME."""

    def prepare(name: str, *options: str, source: str = "nemotron-cc") -> int:
        return main(
            [
                *("--source", source, "--mirror", web.url, "--tokenizer", str(small_folder)),
                *("--workers", "1", "--out", str(tmp_path / name), *options),
            ]
        )

    return prepare


@pytest.fixture
def order(web: Web, tmp_path: Path) -> list[str]:
    """Paths of the high quality in the order in which they are taken."""
    files = nemotron_files("quality=high", web.url, tmp_path)
    return [file.url.removeprefix(web.url + "/") for file in files]


def test_one_file_of_high_quality_is_taken_unless_more_is_asked_for(order, run, web, tmp_path):
    assert run("one") == 0
    assert sorted(texts_of(tmp_path / "one")) == sorted(texts_in(order[0]))
    assert run("two", "--num-files", "2") == 0
    assert sorted(texts_of(tmp_path / "two")) == sorted([*texts_in(order[0]), *texts_in(order[1])])
    # The first file was here already; the others were never asked for.
    assert [len(web.asked(f"/{path}")) for path in order] == [1, 1, 0, 0, 0, 0]


def test_as_many_files_are_taken_as_the_tokens_need(order, run, web, tmp_path, monkeypatch):
    assert run("one") == 0
    a_file = Manifest.read(tmp_path / "one").tokens
    wanted = int(2.5 * a_file)
    # As if one token took a byte: these files compress far better than real ones.
    size = len(_file(order[0]))
    monkeypatch.setattr(fetching, "TOKENS_PER_BYTE", a_file / size)
    assert run("some", "--tokens", str(wanted)) == 0
    manifest = Manifest.read(tmp_path / "some")
    assert wanted <= manifest.tokens < wanted + 200
    assert manifest.sources[0].read == 60
    assert [bool(web.asked(f"/{path}")) for path in order[:3]] == [True] * 3
    assert not web.asked(f"/{order[5]}")


def test_a_file_that_is_not_there_is_named_and_passed_over(order, run, web, tmp_path, capsys):
    del web.files[f"/{order[0]}"]
    assert run("out", "--num-files", "2") == 0
    assert sorted(texts_of(tmp_path / "out")) == sorted(texts_in(order[1]))
    (fault,) = Manifest.read(tmp_path / "out").sources[0].faults
    assert Path(order[0]).name in fault
    assert "404" in fault
    assert f"warning: nemotron-cc: {fault}" in capsys.readouterr().err
    assert run("strict", "--num-files", "2", "--strict") == 2
    assert "404" in capsys.readouterr().err
    assert not (tmp_path / "strict").exists()


def test_a_server_that_stays_away_stops_the_run_and_the_same_command_continues(
    order, run, web, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(transfer, "ATTEMPTS", 2)
    web.faults[f"/{order[1]}"] = [Fault(status=503)] * 9
    assert run("out", "--num-files", "2") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("dualpath prepare: failed: ")
    assert "503" in said
    assert not (tmp_path / "out").exists()
    web.faults.clear()
    assert run("out", "--num-files", "2") == 0
    assert len(texts_of(tmp_path / "out")) == 40
    assert len(web.asked(f"/{order[0]}")) == 1


def test_much_to_download_is_asked_about_first(order, run, web, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fetching, "ASK_ABOVE", 500)
    assert run("out", "--num-files", "3") == 2
    said = capsys.readouterr().err
    assert "downloads about" in said
    assert "--yes" in said
    assert not any(web.asked(f"/{path}") for path in order)
    assert run("out", "--num-files", "3", "--yes") == 0
    assert len(texts_of(tmp_path / "out")) == 60


def test_a_disk_that_is_too_small_is_noticed_before(run, web, capsys, monkeypatch):
    monkeypatch.setattr(fetching, "DISK_BYTES_PER_TOKEN", 1e18)
    assert run("out") == 2
    assert "are needed and" in capsys.readouterr().err
    assert not any(web.asked(f"/{path}") for path in FILES)
