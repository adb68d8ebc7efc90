"""Downloads: the right bytes or no file, whatever the server, the line and the process do."""

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.download import RemoteFile, Unavailable, Unreachable, transfer
from data_prep.download.transfer import Downloads, download, with_sizes
from dualpath_cli.errors import UserError
from tests.data_prep import web as webs
from tests.data_prep.web import CONTENT, CUT, NO_VALIDATOR, SIZE, Fault, Web, fetch, names, remote

TEN_BYTES = {"Content-Length": "10", "Content-Range": f"bytes {CUT}-{CUT + 9}/{SIZE}"}


@pytest.fixture
def web() -> Iterator[Web]:
    with Web({"/a.zst": CONTENT}) as web:
        yield web


FETCH = """
import sys
from pathlib import Path
from data_prep.download.transfer import Downloads
from data_prep.download import RemoteFile
file = RemoteFile(sys.argv[1], "a.zst")
with Downloads([file], Path(sys.argv[2])) as downloads:
    downloads.get(file)
"""


@pytest.fixture
def other_process(
    web: Web, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A process that has a part of the file; the second half comes when the event is set."""
    until = threading.Event()
    web.faults["/a.zst"] = [Fault(until=until)]
    command = [sys.executable, "-c", FETCH, f"{web.url}/a.zst", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    webs.wait_for_bytes(tmp_path / "a.zst.part")
    yield process, until
    process.kill()
    process.wait()
    until.set()


# Faults of one answer after the other, and from which byte on each request asks for the file.
CONTINUED = {
    "nothing": ([], [None]),
    **{f"{n} three times": ([Fault(n)] * 3, [None] * 4) for n in (408, 429, 500, 502, 503, 504)},
    "no answer": ([Fault(reset=True)], [None, None]),
    "a cut": ([Fault(cut=CUT)], [None, CUT]),
    "a cut before the first byte": ([Fault(cut=0)], [None, None]),
    "a cut, then overload": ([Fault(cut=CUT), Fault(503)], [None, CUT, CUT]),
    "a cut, and no ranges": ([Fault(cut=CUT), Fault(ranges=False)], [None, CUT]),
    "a cut, then 416": ([Fault(cut=CUT), Fault(416)], [None, CUT, None]),
    "continues at the wrong byte": ([Fault(cut=CUT), Fault(shift=5)], [None, CUT, None]),
    "continues without saying where":
        ([Fault(cut=CUT), Fault(headers={"Content-Range": None})], [None, CUT, None]),
    "continues a longer file":
        ([Fault(cut=CUT), Fault(headers={"Content-Range": f"bytes {CUT}-{SIZE}/{SIZE + 1}"})],
         [None, CUT, None]),
    "continues a little at a time":
        ([Fault(cut=CUT), Fault(cut=10, headers=TEN_BYTES)], [None, CUT, CUT + 10]),
    "a cut, Last-Modified alone":
        ([Fault(cut=CUT, headers={"ETag": None}), Fault(headers={"ETag": None})], [None, CUT]),
    "a cut, and only a weak ETag":
        ([Fault(cut=CUT, headers={"ETag": 'W/"1"', "Last-Modified": None})], [None, None]),
    "a cut, and no validator": ([Fault(cut=CUT, headers=NO_VALIDATOR)], [None, None]),
    "no length": ([Fault(chunked=True)], [None]),
    "no length, and a cut": ([Fault(chunked=True, cut=CUT)], [None, CUT]),
    "a length that is too long":
        ([Fault(headers={"Content-Length": str(SIZE + 5)}, cut=SIZE)], [None, SIZE, None]),
    "an encoding that is no news": ([Fault(headers={"Content-Encoding": "gzip"})], [None]),
    "silence": ([Fault(silent=4.0)], [None, None]),
}  # fmt: skip


@pytest.mark.parametrize(("faults", "starts"), CONTINUED.values(), ids=CONTINUED)
def test_the_file_is_whole_in_the_end(web, tmp_path, monkeypatch, faults, starts):
    if any(fault.silent for fault in faults):  # else a busy machine's own pauses would count
        monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", (5, 2.0))
    web.faults["/a.zst"] = list(faults)
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert [request.start for request in web.asked("/a.zst")] == starts
    assert {request.headers["accept-encoding"] for request in web.requests} == {"identity"}
    assert names(tmp_path) == ["a.zst"]


@pytest.mark.parametrize(
    ("fault", "known", "reason"),
    [
        (Fault(400), {}, "400 Bad Request"),
        (Fault(403), {}, "403 Forbidden"),
        (Fault(404), {}, "404 Not Found"),
        (Fault(416), {}, "416"),  # to a request without a range
        (Fault(204), {}, "204 No Content"),
        (Fault(302, {"Location": "/a.zst"}), {}, "30 redirects"),
        (Fault(), {"sha256": "0" * 64}, "sha256 is not 0000"),
        (Fault(), {"size": SIZE + 1}, "256,000 bytes instead of 256,001"),
        (Fault(chunked=True), {"size": SIZE - 1}, "256,000 bytes instead of"),
    ],
)
def test_what_no_patience_mends_is_said_at_once_and_leaves_nothing(
    web, tmp_path, fault, known, reason
):
    def sleep(seconds):
        raise AssertionError("waited")

    web.fallback = fault
    with pytest.raises(Unavailable, match=reason):
        fetch(web, tmp_path, sleep=sleep, **known)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(503), "503 Service Unavailable"),
        (Fault(429), "429 Too Many Requests"),
        (Fault(reset=True), "closed connection without response"),
        (Fault(cut=CUT, ranges=False), "IncompleteRead"),  # one cut after the other
    ],
)
def test_lasting_trouble_ends_after_so_many_attempts(web, tmp_path, fault, reason):
    web.fallback = fault
    waits = []
    with pytest.raises(Unreachable, match=reason) as caught:
        fetch(web, tmp_path, sleep=waits.append)
    assert len(waits) >= transfer.ATTEMPTS - 1
    assert "\n" not in str(caught.value)
    assert web.url in str(caught.value)
    assert not (tmp_path / "a.zst").exists()


def test_waits_grow_to_a_limit_and_start_again_when_bytes_arrive(web, tmp_path):
    almost = [Fault(status=503)] * (transfer.ATTEMPTS - 1)
    web.faults["/a.zst"] = [*almost, Fault(cut=CUT), *almost[1:], Fault(cut=1), *almost[1:]]
    waits = []
    assert fetch(web, tmp_path, sleep=waits.append).read_bytes() == CONTENT
    round_of_waits = [min(2.0**n, 60) for n in range(transfer.ATTEMPTS - 1)]
    for wait, most in zip(waits, round_of_waits * 3, strict=True):
        assert most / 2 <= wait <= most


@pytest.mark.parametrize(
    ("answer", "least", "most"), [("7", 7, 7), ("100000", 300, 300), ("soon", 0, 1)]
)
def test_the_server_says_how_long_to_wait(web, tmp_path, answer, least, most):
    web.faults["/a.zst"] = [Fault(status=429, headers={"Retry-After": answer})]
    waits = []
    fetch(web, tmp_path, sleep=waits.append)
    assert len(waits) == 1
    assert least <= waits[0] <= most


def test_names_are_paths_below_the_folder_and_never_above_it(web, tmp_path):
    web.files["/quality=high/kind=actual/1.zst"] = CONTENT
    path = fetch(web, tmp_path / "new", "/quality=high/kind=actual/1.zst")
    assert path == tmp_path / "new/quality=high/kind=actual/1.zst"
    for name in ("../a", "/a", "a/../../b", ""):
        with pytest.raises(UserError, match="outside the download folder"):
            RemoteFile(web.url, name)


def test_a_full_disk_is_named_and_not_waited_for(web, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device.*a\.zst\.part"):
        fetch(web, tmp_path)
    assert len(web.requests) == 1


def test_a_token_is_sent_to_its_host_alone_and_never_shown(web, tmp_path):
    with Web({"/b": CONTENT}) as elsewhere:
        web.files["/b"] = CONTENT
        web.faults["/a.zst"] = [
            Fault(status=302, headers={"Location": f"{elsewhere.url}/b"}),
            Fault(status=302, headers={"Location": "/b"}),
        ]
        for name in ("away", "here"):
            file = RemoteFile(f"{web.url}/a.zst", name, token="secret")
            assert download(file, tmp_path).read_bytes() == CONTENT
    sent = [request.headers.get("authorization") for request in web.requests]
    assert sent == ["Bearer secret"] * 3
    assert len(elsewhere.requests) == 1
    assert "authorization" not in elsewhere.requests[0].headers
    assert "secret" not in repr(file)


def test_a_token_goes_before_the_password_of_netrc(web, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    fetch(web, tmp_path, token="secret")
    assert web.requests[0].headers["authorization"] == "Bearer secret"


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


def test_sizes_are_asked_for_where_they_are_not_known(web):
    web.files |= {"/b": b"12345", "/c": b"123"}
    web.faults["/c"] = [Fault(status=500)]
    files = [
        remote(web),
        remote(web, "/b", size=4),
        remote(web, "/c"),
        remote(web, "/none"),
        RemoteFile("http://", "nowhere"),
    ]
    assert [file.size for file in with_sizes(files)] == [SIZE, 4, None, None, None]
    assert {request.method for request in web.requests} == {"HEAD"}
    assert web.asked("/b", "HEAD") == []


@pytest.fixture
def numbered(web):
    """Twelve files, of different content."""
    web.files = {f"/{n}": CONTENT + bytes([n]) for n in range(12)}
    return [remote(web, path) for path in web.files]


def requested(web):
    return {int(request.path[1:]) for request in web.requests}


def test_files_arrive_in_order_and_no_further_ahead_than_allowed(web, tmp_path, numbered):
    counts = []
    with Downloads(numbered, tmp_path, counts.append, connections=3, ahead=2) as downloads:
        webs.wait_for(lambda: names(tmp_path) == ["0", "1"])
        assert requested(web) == {0, 1}
        for n, file in enumerate(numbered):
            assert downloads.get(file).read_bytes() == web.files[f"/{n}"]
            assert requested(web) <= set(range(n + 3))
            assert downloads.get(file) == tmp_path / str(n)
    assert len(web.requests) == len(numbered)
    assert sum(counts) == len(numbered) * (SIZE + 1)


def test_a_file_is_given_out_while_the_next_ones_are_on_their_way(web, tmp_path, numbered):
    until = threading.Event()
    for n in range(1, 5):
        web.faults[f"/{n}"] = [Fault(until=until)]
    with Downloads(numbered, tmp_path) as downloads:
        assert downloads.get(numbered[0]).exists()
        webs.wait_for(lambda: requested(web) == set(range(5)))
        assert not (tmp_path / "1").exists()
        until.set()
        assert downloads.get(numbered[4]).exists()


def test_leaving_keeps_what_has_arrived_for_another_time(web, tmp_path, numbered):
    until = threading.Event()
    web.faults["/0"] = [Fault(until=until)]
    part = tmp_path / "0.part"
    with Downloads(numbered, tmp_path) as downloads:
        webs.wait_for_bytes(part)
    until.set()  # what arrives after leaving ends the thread
    join(downloads)
    arrived = part.stat().st_size
    assert not (tmp_path / "0").exists()
    with Downloads(numbered, tmp_path) as downloads:
        assert downloads.get(numbered[0]).read_bytes() == web.files["/0"]
    assert web.asked("/0")[-1].start == arrived


def join(downloads):
    for thread in downloads._threads:
        thread.join(30)
        assert not thread.is_alive()


def test_ctrl_c_does_not_wait_for_a_silent_server(tmp_path, other_process):
    process, _ = other_process
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=30)  # the server is silent for longer
    assert "KeyboardInterrupt" in printed
    assert (tmp_path / "a.zst.part").stat().st_size > 0


def test_the_wait_for_a_busy_server_ends_on_leaving(web, tmp_path, numbered):
    web.fallback = Fault(status=503, headers={"Retry-After": "200"})
    with Downloads(numbered, tmp_path) as downloads:
        webs.wait_for(lambda: web.requests)
    join(downloads)
