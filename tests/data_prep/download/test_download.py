"""Downloads: the right bytes or no file, whatever the server, the line and the process do."""

import errno
import os

import pytest

from data_prep.download import transfer
from data_prep.download.remote_file import RemoteFile, Unavailable, Unreachable
from data_prep.download.transfer import download
from dualpath_cli.errors import UserError
from tests.data_prep.web import CONTENT, CUT, NO_VALIDATOR, SIZE, Fault, Web, fetch, names

TEN_BYTES = {"Content-Length": "10", "Content-Range": f"bytes {CUT}-{CUT + 9}/{SIZE}"}


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
    "continues without saying where": (
        [Fault(cut=CUT), Fault(headers={"Content-Range": None})],
        [None, CUT, None],
    ),
    "continues a longer file": (
        [Fault(cut=CUT), Fault(headers={"Content-Range": f"bytes {CUT}-{SIZE}/{SIZE + 1}"})],
        [None, CUT, None],
    ),
    "continues a little at a time": (
        [Fault(cut=CUT), Fault(cut=10, headers=TEN_BYTES)],
        [None, CUT, CUT + 10],
    ),
    "a cut, Last-Modified alone": (
        [Fault(cut=CUT, headers={"ETag": None}), Fault(headers={"ETag": None})],
        [None, CUT],
    ),
    "a cut, and only a weak ETag": (
        [Fault(cut=CUT, headers={"ETag": 'W/"1"', "Last-Modified": None})],
        [None, None],
    ),
    "a cut, and no validator": ([Fault(cut=CUT, headers=NO_VALIDATOR)], [None, None]),
    "no length": ([Fault(chunked=True)], [None]),
    "no length, and a cut": ([Fault(chunked=True, cut=CUT)], [None, CUT]),
    "a length that is too long": (
        [Fault(headers={"Content-Length": str(SIZE + 5)}, cut=SIZE)],
        [None, SIZE, None],
    ),
    "an encoding that is no news": ([Fault(headers={"Content-Encoding": "gzip"})], [None]),
    "silence": ([Fault(silent=4.0)], [None, None]),
}
"""Faults of one answer after the other, and from which byte on each request asks for the file."""


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
    ("answer", "least", "most"),
    [
        ("7", 7, 7),
        ("100000", 300, 300),
        ("soon", 0, 1),
    ],
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
