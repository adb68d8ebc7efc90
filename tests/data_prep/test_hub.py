"""Datasets of the hub: the right files of the right config, by the right token."""

import hashlib
import json
from pathlib import PurePosixPath
from urllib.parse import quote

import pytest

from data_prep.download import Downloads
from dualpath_cli.base.errors import UserError
from tests.data_prep.web import Fault, Web

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="the extra `hub` is not installed"
)

from data_prep.sources.corpora import hub_files  # noqa: E402

DATASET = "owner/corpus"
SHA = "0123456789abcdef0123456789abcdef01234567"
INFO = f"/api/datasets/{DATASET}"
CHECK = f"{INFO}/auth-check"
PATHS = [
    "README.md", ".gitattributes", "data/one/train-00000.parquet", "data/one/train-00001.parquet",
    "data/one/test-00000.parquet", "data/two/deep/a b.jsonl.zst", "data/two/c.jsonl",
]  # fmt: skip


class Hub(Web):
    """Answers as the hub's API does for one dataset."""

    def lay_out(self, paths=PATHS, configs=None, gated=False):
        card = {} if configs is None else {"configs": configs}
        info = {"id": DATASET, "sha": SHA, "gated": gated, "cardData": card}
        folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
        tree = [{"type": "directory", "path": f, "oid": "0" * 40} for f in folders - {"."}]
        for path in paths:
            content = f"content of {path}".encode()
            self.files[f"/datasets/{DATASET}/resolve/{SHA}/{path}"] = content
            entry = {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
            if not path.endswith((".jsonl", ".md")):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            tree.append(entry)
        self.files[INFO] = json.dumps(info).encode()
        self.files[CHECK] = b"{}"
        half = len(tree) // 2
        self.files[f"{INFO}/tree/{SHA}"] = json.dumps(tree[:half]).encode()
        self.files[f"{INFO}/tree/{SHA}/rest"] = json.dumps(tree[half:]).encode()
        page_two = f'<{self.url}{INFO}/tree/{SHA}/rest?cursor=2>; rel="next"'
        self.faults[f"{INFO}/tree/{SHA}"] = [Fault(headers={"Link": page_two})] * 9


@pytest.fixture(autouse=True)
def no_token(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))


@pytest.fixture
def hub():
    with Hub() as hub:
        hub.lay_out()
        yield hub


def found(hub, config=None):
    folder = f"huggingface/{DATASET}/{SHA[:12]}/"
    return [file.name.removeprefix(folder) for file in hub_files(DATASET, config, endpoint=hub.url)]


def test_files_are_pinned_to_a_commit_with_their_sizes_and_hashes(hub, tmp_path):
    files = hub_files(DATASET, endpoint=hub.url)
    for file, path in zip(files, [*PATHS[2:4], *sorted(PATHS[5:])], strict=True):
        content = f"content of {path}".encode()
        assert file.url == f"{hub.url}/datasets/{DATASET}/resolve/{SHA}/{quote(path)}"
        assert file.name == f"huggingface/{DATASET}/{SHA[:12]}/{path}"
        sha256 = None if path.endswith(".jsonl") else hashlib.sha256(content).hexdigest()
        assert (file.size, file.sha256, file.token) == (len(content), sha256, None)
        assert Downloads(tmp_path).get(file).read_bytes() == content


ONE = PATHS[2:4]
TWO = sorted(PATHS[5:])


@pytest.mark.parametrize(
    ("data_files", "expected"),
    [
        ("data/one/train-*", ONE),
        ([{"split": "test", "path": "data/one/test*"},
          {"split": "train", "path": ["data/one/train-0000[01].*"]}], ONE),
        ({"train": "data/*/train-0000?.parquet", "test": "data/one/test*"}, ONE),
        ("data/two/*", ["data/two/c.jsonl"]),
        ("data/two/**", TWO),
        ("data/two/**/*", TWO),
        ("data/one/[!t]*", None),
        ("data/one/train-00000xparquet", None),
    ],
)  # fmt: skip
def test_the_card_says_which_files_are_the_training_split(hub, data_files, expected):
    hub.lay_out(configs=[{"config_name": "default", "data_files": data_files}])
    if expected is None:
        with pytest.raises(UserError, match=r"no \.parquet.* file to train on"):
            found(hub)
    else:
        assert found(hub) == found(hub, "default") == expected


def test_a_folder_of_the_card_is_taken_whole(hub):
    whole = {"config_name": "a", "data_dir": "data/two"}
    some = {"config_name": "b", "data_dir": "data/one", "data_files": "train-*"}
    hub.lay_out(configs=[whole, some])
    assert found(hub, "a") == TWO
    assert found(hub, "b") == ONE


def test_without_configs_it_is_the_folder_or_everything_but_held_out_files(hub):
    assert found(hub, "one") == ONE
    assert found(hub, "two") == TWO
    assert found(hub) == ONE + TWO
    hub.lay_out(["a/dev/x.jsonl", "contest.jsonl", "x_validation.jsonl", "training/test.jsonl"])
    assert found(hub) == ["contest.jsonl", "training/test.jsonl"]


@pytest.mark.parametrize("token", ["hf_mine", None, "hf_other"])
def test_a_gated_dataset_needs_a_token_with_access_or_says_what_to_do(hub, monkeypatch, token):
    hub.lay_out(gated="auto")
    hub.tokens[CHECK] = "hf_mine"
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if token == "hf_mine":
        assert {file.token for file in hub_files(DATASET, endpoint=hub.url)} == {token}
        return
    with pytest.raises(UserError) as caught:
        found(hub)
    message = str(caught.value)
    for step in (f"accept them at {hub.url}/datasets/{DATASET}", "hf auth login", "HF_TOKEN"):
        assert step in message
    assert ("no access" in message) == (token is not None)
    assert message.endswith("then run this again")
    assert "\n" not in message
    assert "hf_other" not in message
