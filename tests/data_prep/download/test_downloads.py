"""Several downloads: in order, ahead of their reader but not far, left quickly."""

import signal
import threading

import pytest

from data_prep.download.ahead import Downloads
from data_prep.download.remote_file import RemoteFile
from data_prep.download.transfer import with_sizes
from tests.data_prep.web import CONTENT, SIZE, Fault, names, remote, wait_for, wait_for_bytes


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
        wait_for(lambda: names(tmp_path) == ["0", "1"])
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
        wait_for(lambda: requested(web) == set(range(5)))
        assert not (tmp_path / "1").exists()
        until.set()
        assert downloads.get(numbered[4]).exists()


def test_leaving_keeps_what_has_arrived_for_another_time(web, tmp_path, numbered):
    until = threading.Event()
    web.faults["/0"] = [Fault(until=until)]
    part = tmp_path / "0.part"
    with Downloads(numbered, tmp_path) as downloads:
        wait_for_bytes(part)
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
        wait_for(lambda: web.requests)
    join(downloads)
