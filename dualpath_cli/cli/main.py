"""The `dualpath` command: looks at the first word and imports only what that word needs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TextIO

from dualpath_cli.cli.commands import COMMANDS, Command, resolve
from dualpath_cli.errors import (
    RunFailed,
    Stopped,
    UserError,
    did_you_mean,
    of_system,
    one_line,
)
from dualpath_cli.output import escape_unprintable, to_nobody
from dualpath_cli.system import Terminated, claim, end_with_parent, ended_by_sigterm


def _line(name: str, purpose: str) -> str:
    text = f"  {name:17}{purpose}"
    return fill(text, 80, subsequent_indent=" " * 19, break_on_hyphens=False)


HELP = f"""usage: dualpath COMMAND ...

Pretrain and study dual-path language models.

commands:
{chr(10).join(_line(name, command.purpose) for name, command in COMMANDS.items())}

dualpath COMMAND --help explains a command. A recipe is a path or a packaged
name:
  dualpath fit --config recipes/f160m_a25_k4.yaml
  dualpath flops --budget 80M --alpha 50 --k 4
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0 done, 2 a user's mistake, 1 the machine's failure, one line each; 130 after Ctrl-C, 143 after
    another signal, 141 where the reader of the output left early, in which case `fit` trains on.
    """
    words = sys.argv[1:] if arguments is None else arguments
    escape_unprintable()
    with ended_by_sigterm():
        code = _main(words)
    try:
        sys.stdout.flush()
    except OSError as error:  # reported here: Python would print a traceback as it ends
        to_nobody(sys.stdout)
        code = code or _refused("".join(words[:1]), error)
    return code


def _main(words: Sequence[str]) -> int:
    first = 2 if " ".join(words[:2]) in COMMANDS else 1  # `prepare inspect` is a command
    name, rest = (" ".join(words[:first]), words[first:]) if words else ("--help", [])
    # Waiting threads must not spin: beside a busy process, spinning ones take each other's cores.
    # OpenMP reads this as torch is imported (docs/fit.md#speed).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        end_with_parent()
        if name in ("-h", "--help", "help"):
            print(HELP, end="")
            return 0
        if name == "--version":
            from dualpath_cli.run.run_folder import package_versions

            print(f"dualpath {package_versions(['dualpath'])['dualpath']}")
            return 0
        if name not in COMMANDS:
            hint = did_you_mean(name, COMMANDS) or f"; choose from {', '.join(COMMANDS)}"
            raise UserError(f"no command '{name}'{hint}")
        return _run(COMMANDS[name], rest)
    except UserError as error:
        return _failed(name, 2, str(error))
    except RunFailed as failure:
        if str(failure):
            _say(f"dualpath {name}: failed: {one_line(str(failure))}", sys.stderr)
        return 1
    except OSError as error:
        return _refused(name, error)
    except MemoryError:
        return _failed(name, 1, "out of memory; a smaller model or fewer texts would need less")
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # as Lightning ends
            return _interrupted(name, end.__context__)
        if end.code:
            raise
        return 0  # after --help and --print-config
    except Stopped as stop:
        if not stop.quiet:
            _say(f"dualpath {name}: {stop.text}", sys.stdout)
        return stop.code
    except KeyboardInterrupt as interrupt:
        return _interrupted(name, interrupt)


def _refused(name: str, error: OSError) -> int:
    """Prints what the system refused, if anybody reads the output; returns the exit code."""
    if isinstance(error, BrokenPipeError):  # `dualpath ... | head`
        return 128 + signal.SIGPIPE
    return _failed(name, *of_system(error))


def _interrupted(name: str, interrupt: KeyboardInterrupt) -> int:
    """Prints what ended the command, and what it kept; returns the exit code."""
    by_signal = isinstance(interrupt, Terminated)
    how = "stopped by SIGTERM" if by_signal else "interrupted"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the first one of a machine speaks for the others
        _say("; ".join([f"dualpath {name}: {how}", *map(str, interrupt.args)]), sys.stdout)
    return 143 if by_signal else 130


def _failed(name: str, code: int, message: str) -> int:
    """Prints in one line what went wrong; returns the exit code."""
    shown = f" {name}" if name in COMMANDS else ""
    _say(f"dualpath{shown}: error: {one_line(message)}", sys.stderr)
    return code


def _say(text: str, stream: TextIO) -> None:
    """Prints a last line; a closed stream does not change the exit code."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        to_nobody(stream)


def _run(command: Command, words: Sequence[str]) -> int:
    """Runs a command; of several RUNs on each in turn, and then on their results together."""
    from dualpath_cli.cli.words import read, recipe_of

    line = read(command, words)
    if command.needs in ("nothing", "recipes"):
        given = [line.options] if command.needs == "nothing" else [line.options, recipe_of(line)]
        if answer := resolve(command.run)(*given):
            print(answer)
        return 0
    from dualpath_cli.cli import launch

    several = len(line.runs) > 1  # prepared before what runs them is imported
    launches, out = launch.prepare_several(line) if several else ([launch.prepare(line)], None)
    for folder in (out, *(getattr(one.options, "out", None) for one in launches)):
        if folder is not None:
            claim(Path(folder))
    if out is None:
        code: int = resolve(command.run)(launches[0])
        return code
    from dualpath_cli.output.console import plain_console

    console = plain_console()
    for number, one in enumerate(launches, 1):
        console.print(f"run {number} of {len(launches)}: {one.checkpoint}", highlight=False)
        resolve(command.run)(one)
    assert command.combine is not None
    written = resolve(command.combine)([one.options.folder for one in launches], out, console)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)
    return 0
