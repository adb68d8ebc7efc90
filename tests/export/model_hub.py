"""The hub's API for repositories of models, as far as an upload needs it, on the loopback."""

import base64
import hashlib
import json
from dataclasses import dataclass, field

from tests.data_prep.web import Received, Web

OWNER, TOKEN = "me", "hf_mine"


@dataclass
class Repo:
    """A repository: its files, and the paths that each commit changed."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[set[str]] = field(default_factory=list)


class ModelHub(Web):
    """Keeps repositories of one owner; `.safetensors` go to `blobs` by LFS, as on the hub."""

    def __init__(self) -> None:
        super().__init__()
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}

    def add(self, name: str, repo: Repo) -> None:
        self.repos[name] = repo
        info = {"id": name, "private": repo.private, "sha": f"{len(repo.commits):040x}"}
        info |= {"siblings": [{"rfilename": path} for path in repo.files]}
        for end in ("", "/revision/main"):
            self.files[f"/api/models/{name}{end}"] = json.dumps(info).encode()

    def post(self, request: Received, body: bytes) -> tuple[int, dict]:
        if request.path.startswith("/lfs/"):  # signed addresses need no token
            return self._store(request.path.removeprefix("/lfs/").partition("?")[0], body)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials in Authorization header"}
        if request.path == "/api/repos/create":
            return self._create(json.loads(body))
        if request.path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if request.path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"objects": list(map(self._action, json.loads(body)["objects"]))}
        _, _, _, owner, repo, task, branch = request.path.split("/")
        assert branch == "main"
        answer = {"preupload": self._modes, "commit": self._commit}[task]
        return answer(f"{owner}/{repo}", body)

    def _create(self, asked: dict) -> tuple[int, dict]:
        if asked["organization"] != OWNER:
            return 403, {"error": "You don't have the rights to create a model there"}
        name = f"{OWNER}/{asked['name']}"
        if name in self.repos:
            return 409, {"error": "You already created it", "url": f"{self.url}/{name}"}
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.add(name, Repo(private))
        return 200, {"url": f"{self.url}/{name}"}

    def _modes(self, name: str, body: bytes) -> tuple[int, dict]:
        files = []
        for path in (entry["path"] for entry in json.loads(body)["files"]):
            lfs = path.endswith(".safetensors")
            content = self.repos[name].files.get(path)
            files.append({
                "path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False,
                "oid": None if content is None else _sha256(content) if lfs else _blob(content),
            })  # fmt: skip
        return 200, {"files": files}

    def _action(self, asked: dict) -> dict:
        upload = {"upload": {"href": f"{self.url}/lfs/{asked['oid']}?X-Amz-Signature=secret"}}
        return asked | ({} if asked["oid"] in self.blobs else {"actions": upload})

    def _store(self, oid: str, body: bytes) -> tuple[int, dict]:
        assert _sha256(body) == oid
        self.blobs[oid] = body
        return 200, {}

    def _commit(self, name: str, body: bytes) -> tuple[int, dict]:
        repo, changed = self.repos[name], {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                changed[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                changed[value["path"]] = self.blobs[value["oid"]]
        repo.files |= changed
        repo.commits.append(set(changed))
        self.add(name, repo)
        oid = f"{len(repo.commits):040x}"
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
