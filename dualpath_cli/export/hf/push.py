"""Uploads an exported folder to a repository of the Hugging Face hub, in one commit."""

from pathlib import Path
from typing import TYPE_CHECKING

from dualpath_cli.errors import UserError
from dualpath_cli.run.exported_folder import MODELING
from dualpath_cli.text import hub
from dualpath_cli.text.hub import FIRST_ANSWER_SECONDS, within

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

AGAIN = "run this again with --overwrite"
"""The way out once the folder is written; what was uploaded is not sent again."""


class Repository:
    """A repository of models on the hub."""

    def __init__(self, name: str) -> None:
        """`name` is USER/REPO; nothing is asked yet."""
        self._name, self._what = name, f"--push '{name}'"
        if name.count("/") != 1:
            raise UserError(f"{self._what} is not a name on the hub; give USER/REPO")
        self._api: HfApi = hub.connect(self._what)
        self.page = f"{self._api.endpoint}/{name}"
        if not self._api.token:
            raise UserError(
                f"{self._what} needs a token: make one with the right to write at "
                f"{self._api.endpoint}/settings/tokens, then `hf auth login` or set HF_TOKEN"
            )

    def make(self, public: bool) -> None:
        """Makes the repository where there is none, and looks what is in it.

        Raises:
            RunFailed: where the hub does not answer.
        """
        with hub.explained(self._what, self.page, self._api):
            # huggingface_hub itself waits without end for a server that accepts and never answers.
            info = within(FIRST_ANSWER_SECONDS, lambda: self._made(public))
        if public and info.private:
            raise UserError(f"{self.page} is private; leave --public out, or make it public there")
        if not public and not info.private:
            raise UserError(f"{self.page} is public; say --public, or give another name")
        names = {file.rfilename for file in info.siblings or ()}
        if MODELING not in names and names - {".gitattributes", "README.md"}:
            raise UserError(f"{self.page} holds files of something else; give another name")

    def _made(self, public: bool) -> "ModelInfo":
        self._api.create_repo(self._name, private=not public, exist_ok=True)
        return self._api.model_info(self._name)

    def upload(self, folder: Path, message: str) -> str:
        """Uploads all files of a folder, all or none; returns the address of the commit.

        Files that are there already are neither sent again nor part of the commit, and without
        any other there is none: the address is then that of the last. Others in the repository
        stay.

        Raises:
            RunFailed: where the transfer fails, or the hub.
        """
        from huggingface_hub import CommitOperationAdd

        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        adds = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files]
        with hub.explained(self._what, self.page, self._api, AGAIN):
            commit = self._api.create_commit(self._name, adds, commit_message=message)
        return commit.commit_url
