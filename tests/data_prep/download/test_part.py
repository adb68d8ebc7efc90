"""Parts of files: continued where they end, never glued to another version, held by one process."""

import fcntl
import hashlib
import json
import os
import signal
import time

import pytest

from tests.data_prep.web import (
    CONTENT,
    CUT,
    NO_VALIDATOR,
    SIZE,
    Fault,
    fetch,
    names,
)

OTHER = CONTENT[::-1]
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_a_file_that_is_there_is_not_fetched_again(web, tmp_path):
    path = fetch(web, tmp_path)
    for known in ({}, {"size": SIZE}, {"sha256": SHA256}):
        assert fetch(web, tmp_path, **known) == path
    assert len(web.requests) == 1


def test_a_file_of_another_length_than_is_known_is_replaced(web, tmp_path):
    (tmp_path / "a.zst").write_bytes(b"half")
    assert fetch(web, tmp_path, size=SIZE).read_bytes() == CONTENT


@pytest.mark.parametrize("known", [{}, {"size": SIZE}, {"sha256": SHA256}])
def test_a_part_that_is_whole_is_not_asked_for(web, tmp_path, known):
    (tmp_path / "a.zst.part").write_bytes(CONTENT)
    notes = {"validator": '"1"', "total": SIZE}
    (tmp_path / "a.zst.part.json").write_text(json.dumps(notes))
    assert fetch(web, tmp_path, **known).read_bytes() == CONTENT
    assert web.requests == []
    assert names(tmp_path) == ["a.zst"]


@pytest.mark.parametrize("notes", [None, "", "[]", "{}", '{"validator": "x"'])
def test_a_part_of_unknown_origin_is_not_continued(web, tmp_path, notes):
    (tmp_path / "a.zst.part").write_bytes(OTHER[:CUT])
    if notes is not None:
        (tmp_path / "a.zst.part.json").write_text(notes)
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert [request.start for request in web.requests] == [None]


def test_a_part_with_wrong_bytes_is_found_by_the_hash_and_fetched_anew(web, tmp_path):
    web.faults["/a.zst"] = [Fault(cut=CUT, content=OTHER, headers=NO_VALIDATOR)]
    assert fetch(web, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert [request.start for request in web.requests] == [None, CUT, None]


@pytest.mark.parametrize(
    ("heeded", "starts"), [(True, [None, CUT]), (False, [None, CUT, None])], ids=["yes", "no"]
)
def test_a_file_that_changed_meanwhile_is_fetched_anew_whether_if_range_is_heeded_or_not(
    web, tmp_path, heeded, starts
):
    web.fallback = Fault(conditions=heeded)
    web.faults["/a.zst"] = [Fault(cut=CUT)]
    path = fetch(web, tmp_path, sleep=lambda seconds: web.files.update({"/a.zst": OTHER}))
    assert path.read_bytes() == OTHER
    assert [request.start for request in web.requests] == starts


def test_a_killed_download_is_continued_where_it_was(web, tmp_path, other_process):
    process, _ = other_process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    arrived = (tmp_path / "a.zst.part").stat().st_size
    assert not (tmp_path / "a.zst").exists()
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert [request.start for request in web.requests] == [None, arrived]


def test_a_file_that_another_process_fetches_is_waited_for(web, tmp_path, other_process):
    _, until = other_process

    def sleep(seconds):
        until.set()
        time.sleep(0.01)

    assert fetch(web, tmp_path, sleep=sleep).read_bytes() == CONTENT
    assert [request.start for request in web.requests] == [None]
    assert names(tmp_path) == ["a.zst"]


def test_a_part_that_its_last_holder_removed_is_not_written_to(web, tmp_path, monkeypatch):
    flock, part = fcntl.flock, tmp_path / "a.zst.part"

    def remove_first(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        part.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["a.zst"]
