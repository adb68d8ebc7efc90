"""`export --push`: what comes to the hub, who sees it, and one line where it does not come."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.faulty_data import flip
from tests.data_prep.web import Fault
from tests.export.conftest import contents, words
from tests.export.model_hub import TOKEN, ModelHub, Repo

hub_constants = pytest.importorskip(
    "huggingface_hub.constants", reason="the extra `hub` is not installed"
)

from huggingface_hub.utils import disable_progress_bars, enable_progress_bars  # noqa: E402

NAME = "me/tiny"
CREATE, COMMIT = "/api/repos/create", f"/api/models/{NAME}/commit/main"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)  # its storage is not imitated
    disable_progress_bars()
    with ModelHub() as hub:
        monkeypatch.setattr(hub_constants, "ENDPOINT", hub.url)
        yield hub
    enable_progress_bars()


@pytest.mark.parametrize("public", [False, True])
def test_a_folder_comes_whole_once_and_in_one_commit(public, hub, trained, tmp_path, output_of):
    out = tmp_path / "hf"
    given = words(trained(), out, "--push", NAME, *(["--public"] if public else []))
    said = output_of(*given)
    repo = hub.repos[NAME]
    assert repo.private is not public
    assert repo.files == contents(out)
    assert list(hub.blobs.values()) == [(out / "model.safetensors").read_bytes()]
    assert said.splitlines()[-1] == f"uploaded: {hub.url}/{NAME}, commit {1:040x}"
    assert output_of(*given, "--overwrite").splitlines()[-1] == said.splitlines()[-1]
    assert len(repo.commits) == 1
    said = output_of(*given, "--overwrite", "--license", "apache-2.0")
    assert said.endswith(f"commit {2:040x}\n")
    assert repo.commits[1] == {"README.md", "SHA256SUMS"}
    assert repo.files == contents(out)


@pytest.mark.parametrize("xet", [False, True])
def test_an_upload_that_was_cut_off_goes_on(
    xet, hub, trained, tmp_path, said, output_of, monkeypatch
):
    given = words(trained(), tmp_path / "hf", "--push", NAME)
    hub.faults[COMMIT] = [] if xet else [Fault(status=500)]
    with monkeypatch.context() as patch:
        if xet:
            pytest.importorskip("hf_xet")
            patch.setattr(hub_constants, "HF_HUB_DISABLE_XET", False)
        error = said(*given, code=1)
    assert f"--push '{NAME}'" + (" failed: " if xet else ": http") in error
    assert "; run this again with --overwrite" in error
    assert not hub.repos[NAME].commits
    output_of(*given, "--overwrite")
    assert [request.method for request in hub.requests].count("PUT") == 1
    assert hub.repos[NAME].files == contents(tmp_path / "hf")


def test_a_hub_that_accepts_the_commit_and_never_answers_is_given_up(
    hub, trained, tmp_path, said, monkeypatch
):
    monkeypatch.setattr("dualpath_cli.data.hub.ANSWER_SECONDS", 0.5)
    hub.faults[COMMIT] = [Fault(silent=3.0)]
    error = said(*words(trained(), tmp_path / "hf", "--push", NAME), code=1)
    assert "cannot be reached (" in error
    assert "; check the network" in error


@pytest.mark.parametrize("answer", ["_create", "_modes", "_commit"])
def test_an_answer_of_no_hub_is_one_line(answer, hub, trained, tmp_path, said, monkeypatch):
    monkeypatch.setattr(hub, answer, lambda *asked: (200, []))
    hub.add(NAME, Repo(True))
    error = said(*words(trained(), tmp_path / "hf", "--push", NAME), code=1)
    assert f"--push '{NAME}' failed: a value in it is of another kind than it must be" in error


@pytest.mark.parametrize(
    ("more", "fault", "message"),
    [
        (["--push", NAME], Fault(reset=True), "cannot be reached (Server disconnected"),
        (["--push", "me/open"], Fault(), "me/open is public; say --public, or give another"),
        (["--push", "me/shut", "--public"], Fault(), "me/shut is private; leave --public"),
        (["--push", "me/gpt2"], Fault(), "me/gpt2 holds files of something else"),
    ],
)  # fmt: skip
def test_what_the_hub_would_not_take_is_said_before_anything_is_written(
    more, fault, message, hub, trained, tmp_path, said
):
    for name, private, path in (("open", False, "README.md"), ("shut", True, "README.md")):
        hub.add(f"me/{name}", Repo(private, {path: b""}))
    hub.add("me/gpt2", Repo(True, {"pytorch_model.bin": b"", "README.md": b""}))
    hub.faults[CREATE] = [fault]
    code = 1 if fault.reset else 2  # of the machine, or the user's
    assert message in said(*words(trained(), tmp_path / "hf", *more), code=code)
    assert not (tmp_path / "hf").exists()


def test_a_damaged_checkpoint_makes_no_repository(hub, trained, tmp_path, said):
    run = trained()
    flip(max((run / "checkpoints").glob("step-*/*.safetensors")))
    said(*words(run, tmp_path / "hf", "--push", NAME, "--public"))
    assert not hub.repos


def test_a_refused_transfer_does_not_print_the_signed_address(
    hub, trained, tmp_path, said, monkeypatch
):
    monkeypatch.setattr(hub, "_store", lambda oid, body: (403, {"error": "expired"}))
    error = said(*words(trained(), tmp_path / "hf", "--push", NAME), code=1)
    assert "/lfs/" in error
    assert "Signature" not in error
