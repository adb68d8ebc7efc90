"""`python -m data_prep`: chooses the command, and says in one line how it ended."""

import signal
import sys

from dualpath_cli.ending import Terminated, ended_by_sigterm
from dualpath_cli.errors import UserError
from dualpath_cli.output.streams import escape_unprintable, to_nobody


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    0 done, 2 a user's mistake, 1 the disk's or the network's, 130 interrupted, 143 terminated; one
    line each. 141 where the reader of `inspect` has left.
    """
    words = sys.argv[1:] if arguments is None else arguments
    escape_unprintable()
    inspecting = words[:1] == ["inspect"]
    again = "" if inspecting else "; the same command continues"
    try:
        if inspecting:
            from data_prep.report.report import inspect_command

            return inspect_command(words[1:])
        from data_prep.command import prepare_command  # here, for a Ctrl-C meanwhile

        with ended_by_sigterm():
            return prepare_command(words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if inspecting and isinstance(error, BrokenPipeError):
            to_nobody(sys.stdout)
            return 128 + signal.SIGPIPE
        print(f"error: {error}{again}", file=sys.stderr)
        return 1
    except Terminated:
        print(f"terminated{again}", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print(f"interrupted{again}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
