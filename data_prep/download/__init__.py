"""A file on a server: its URL, its path here, and why it may be unavailable.

While no server has answered this process, there may be no network at all.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dualpath_cli.errors import UserError
from dualpath_cli.text.hub import FIRST_ANSWER_SECONDS


class Unavailable(Exception):
    """A file cannot be fetched, now or later; the message is the reason."""


class Unreachable(OSError):
    """Trouble that outlasted all attempts but may pass; what has arrived is kept."""


class FirstContact:
    def __init__(self) -> None:
        self.made = False
        self.trouble = "no answer"

    @property
    def seconds(self) -> float | None:
        """The time to wait for a server's data; None, without end, once one answered."""
        return None if self.made else FIRST_ANSWER_SECONDS

    def check(self, url: str) -> None:
        if not self.made:
            raise Unreachable(
                f"{url} cannot be reached ({self.trouble}); check the network, and HTTPS_PROXY "
                "where one is needed"
            )


first_contact = FirstContact()
"""This process's: what one request learns of the network holds for all."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, and where it goes."""

    url: str
    name: str  # path below the download folder
    size: int | None = None  # bytes, where known beforehand
    sha256: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token for the URL's host; another host that it redirects to does not get it."""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(
                f"'{self.url}' would be stored as '{self.name}', outside the download folder; "
                "check where the list of files comes from"
            )
