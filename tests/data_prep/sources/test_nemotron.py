"""Nemotron-CC's files: those of the selection, spread over snapshots, in an order that stays."""

import gzip
import itertools

import pytest

from data_prep.sources.nemotron import nemotron_files
from dualpath_cli.errors import UserError
from tests.data_prep.web import Web

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
def web():
    with Web({LIST: gzip.compress("".join(f"{path}\n" for path in PATHS).encode())}) as web:
        yield web


def files(web, selection, folder):
    return nemotron_files(selection, web.url, folder)


@pytest.mark.parametrize(
    ("selection", "folders"),
    [
        ("", FOLDERS),
        ("kind=actual/quality=high", FOLDERS[:1]),
        ("kind2=wrap_medium", [FOLDERS[2], FOLDERS[5]]),
        ("quality=medium/", FOLDERS[4:5]),
    ],
)
def test_a_selection_takes_whole_components_in_any_order(web, tmp_path, selection, folders):
    expected = {
        f"{web.url}/{path}" for path in PATHS if path.rpartition("/")[0].endswith(tuple(folders))
    }
    found = [file.url for file in files(web, selection, tmp_path)]
    assert set(found) == expected
    assert len(found) == len(expected) == 100 * len(folders)


def test_the_order_depends_on_nothing_but_the_paths(web, tmp_path):
    everything = [file.name for file in files(web, "", tmp_path)]
    high = [file.name for file in files(web, "quality=high", tmp_path)]
    assert high == [name for name in everything if "quality=high/" in name]
    web.files[LIST] = gzip.compress("\n".join(reversed(PATHS)).encode())
    assert [file.name for file in files(web, "", tmp_path / "other")] == everything


def test_the_first_files_are_spread_over_the_snapshots(web, tmp_path):
    first = files(web, "quality=high/kind=actual", tmp_path)[:20]
    assert len({file.name.split("/")[-1].split("-part-")[0] for file in first}) >= 10


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_list_is_fetched_once(web, tmp_path, slash):
    found = [nemotron_files("", web.url + slash, tmp_path) for _ in range(2)]
    assert found[0] == found[1]
    assert [request.path for request in web.requests] == [LIST]


@pytest.mark.parametrize(
    "content",
    [b"<html>please log in</html>", gzip.compress(b"a/b\n"), gzip.compress(b""), b"\x1f\x8b\x08"],
    ids=["page", "no corpus", "empty", "cut"],
)
def test_a_list_that_is_none_is_refused_and_fetched_again(web, tmp_path, content):
    good, web.files[LIST] = web.files[LIST], content
    with pytest.raises(UserError, match=f"mirror '{web.url}'.* is not a gzipped list of paths"):
        files(web, "", tmp_path)
    web.files[LIST] = good
    assert len(files(web, "", tmp_path)) == len(PATHS)
