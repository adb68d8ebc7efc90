"""The `dualpath` command: runs the command that the first word names, and ends in an
exit code.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pkgutil import resolve_name
from textwrap import fill
from typing import TextIO

from dualpath_cli.base.errors import (
    RunFailed,
    Stopped,
    UserError,
    describe_system_error,
    did_you_mean,
    lacks_gpu_memory,
)
from dualpath_cli.base.folders import claimed_folder
from dualpath_cli.base.output import escape_unprintable, one_line, say, send_nowhere
from dualpath_cli.base.processes import (
    Terminated,
    end_with_parent,
    ended_by_signals,
    is_first_of_node,
)
from dualpath_cli.base.version import __version__
from dualpath_cli.cli.commands import COMMANDS, Command, split_command

_LINES = [
    fill(
        f"  {name:17}{command.purpose}",
        80,
        subsequent_indent=" " * 19,
        break_on_hyphens=False,
    )
    for name, command in COMMANDS.items()
]
HELP = f"""usage: dualpath COMMAND ...

Pretrain and study dual-path language models.

commands:
{chr(10).join(_LINES)}

dualpath COMMAND --help explains a command. A recipe is a path or a packaged
name:
  dualpath fit --config recipes/f160m_a25_k4.yaml
  dualpath flops --budget 80M --alpha 50 --k 4
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: done. 2: a user's mistake, 1: a failure of the machine, with one line each. 130:
    Ctrl-C, 143: another signal. 141: the reader of the output left early (`fit` trains
    on).
    """
    words = sys.argv[1:] if arguments is None else arguments
    if "_ARGCOMPLETE" in os.environ:
        resolve_name("dualpath_cli.cli.help:complete")()
    name, given = split_command(words or ["--help"])

    escape_unprintable()
    # Waiting threads must not spin: beside a busy process, they would take each other's
    # cores. OpenMP reads this variable when torch is imported (docs/fit.md#speed).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # No child process looks for modules in the working directory.
    os.environ["PYTHONSAFEPATH"] = "1"
    # one line reports a failure of a tokenizer's library
    os.environ["RUST_BACKTRACE"] = "0"

    code = 0
    with ended_by_signals() as came:
        try:
            end_with_parent()
            _run_named(name, given)
        except Exception as error:  # matplotlib turns a signal into a TypeError
            code = _failed(name, came[-1] if came else error)
        except BaseException as end:
            code = _failed(name, end)

    try:
        sys.stdout.flush()
    except OSError as error:  # reported here: Python would print a traceback at exit
        send_nowhere(sys.stdout)
        code = code or _failed(name, error)
    return code


def _run_named(name: str, arguments: Sequence[str]) -> None:
    """Runs the command of that name, or shows help or the version."""
    if name in ("-h", "--help", "help"):
        say(HELP, sys.stdout, end="")
    elif name == "--version":
        say(f"dualpath {__version__}", sys.stdout)
    elif name in COMMANDS:
        _run_command(COMMANDS[name], arguments)
    else:
        hint = did_you_mean(name, COMMANDS) or f"; choose from {', '.join(COMMANDS)}"
        raise UserError(f"no command '{name}'{hint}")


def _run_command(command: Command, given: Sequence[str]) -> None:
    from dualpath_cli.cli.arguments import read_arguments

    arguments = read_arguments(command, given)
    if command.launch is None:
        base = arguments.recipes if command.varies else {}
        line = arguments.over(base)
        parts = [line.options, line.recipe] if command.varies else [line.options]
        answer = resolve_name(command.run)(*parts)
        if answer:
            say(answer, sys.stdout)
        return

    launch = resolve_name(command.launch)(arguments)
    out = getattr(launch, "out", None)
    with claimed_folder(out) if out else nullcontext():
        resolve_name(command.run)(command, launch)


def _failed(name: str, error: BaseException) -> int:
    """Prints the line of a failure and returns the exit code; raises errors that are
    defects."""
    match error:
        case UserError():
            return _end(name, 2, f"error: {error}" if str(error) else "")
        case RunFailed():
            return _end(name, 1, f"failed: {error}" if str(error) else "")
        case BrokenPipeError():  # `dualpath ... | head`
            return 128 + signal.SIGPIPE
        case OSError():
            code, text = describe_system_error(error)
            return _end(name, code, f"error: {text}")
        case MemoryError():
            way_out = "take fewer or shorter texts, or a smaller model"
            return _end(name, 1, f"error: out of memory; {way_out}")
        case RuntimeError() if lacks_gpu_memory(error):
            options = "--batch-size, --precision bfloat16 or --device cpu"
            if COMMANDS[name].launch:
                options = "--run.micro_batch"
            text = f"failed: the GPU is out of memory; give a smaller {options}"
            return _end(name, 1, text)
        case Stopped():
            return _end(name, error.code, "" if error.quiet else error.text, sys.stdout)
        case KeyboardInterrupt():
            return _interrupted(name, error)
        case SystemExit():
            # Lightning turns an interrupt into an exit.
            if isinstance(error.__context__, KeyboardInterrupt):
                return _interrupted(name, error.__context__)
            if not error.code:
                return 0  # after --help and --print-config
    raise error


def _interrupted(name: str, interrupt: KeyboardInterrupt) -> int:
    """Prints how the command was interrupted, once on each machine."""
    by_sigterm = isinstance(interrupt, Terminated)
    how = "stopped by SIGTERM" if by_sigterm else "interrupted"
    text = "; ".join([how, *map(str, interrupt.args)])
    if not is_first_of_node():
        text = ""
    return _end(name, 143 if by_sigterm else 130, text, sys.stdout)


def _end(name: str, code: int, text: str, stream: TextIO | None = None) -> int:
    """Prints a last line, on stderr by default; a closed stream does not change the
    exit code."""
    stream = stream or sys.stderr
    try:
        if text:
            called = f"dualpath {name}" if name in COMMANDS else "dualpath"
            say(f"{called}: {one_line(text)}", stream)
    except OSError:
        send_nowhere(stream)
    return code
