"""First contact: while no server has answered this process, there may be no network at all."""

from data_prep.download.remote_file import Unreachable
from dualpath_cli.text.deadline import FIRST_ANSWER_SECONDS


class FirstContact:
    """Whether any server has answered, and what happened instead."""

    def __init__(self) -> None:
        self.made = False
        self.trouble = "no answer"

    @property
    def seconds(self) -> float | None:
        """The time to wait for a server's data; None, without end, once one answered."""
        return None if self.made else FIRST_ANSWER_SECONDS

    def check(self, url: str) -> None:
        """Raises Unreachable unless a server has answered."""
        if not self.made:
            raise Unreachable(
                f"{url} cannot be reached ({self.trouble}); check the network, and HTTPS_PROXY "
                "where one is needed"
            )


first_contact = FirstContact()
"""This process's: what one request learns of the network holds for all."""
