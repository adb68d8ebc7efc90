"""The `dualpath` command: looks at the first word and imports only what that word needs."""

import sys

from dualpath_cli.errors import UserError, did_you_mean

COMMANDS = {
    "fit": "Train a model from a recipe; the same command continues an interrupted run.",
    "validate": "Score a trained model on named validation sets.",
    "flops": "Solve FLOP-matched widths; count parameters and FLOPs; audit the paper's tables.",
    "ablate": "Override a trained model's loops and gates, and measure what each override costs.",
    "routing": "Read what the gates do token by token: tables, figures, a page to explore.",
}
HELP = f"""usage: dualpath COMMAND ...

Pretrain and study dual-path language models.

commands:
{chr(10).join(f"  {name:10}{text}" for name, text in COMMANDS.items())}

dualpath COMMAND --help explains a command. A recipe is a path or a packaged name:
  dualpath fit --config recipes/f160m_a25_k4.yaml
  dualpath flops --budget 80M --alpha 50 --k 4
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns 0, 2 after a mistake of the user's, or 130 after Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    command, rest = words[0], words[1:]
    if command == "--version":
        from dualpath_cli import __version__

        print(f"dualpath {__version__}")
        return 0
    try:
        if command not in COMMANDS:
            hint = did_you_mean(command, COMMANDS) or f"; choose from {', '.join(COMMANDS)}"
            raise UserError(f"no command '{command}'{hint}")
        if command == "flops":
            from dualpath_cli.flops import command as flops_command

            return flops_command.main(rest)
        from dualpath_cli.command import launch

        if command in launch.STUDIES and len(launch.split_runs(rest)[0]) > 1:
            return _study_several(command, *launch.split_runs(rest))
        prepared = launch.prepare(command, rest)
        if prepared.routing is not None and prepared.routing.text is not None:
            from dualpath_cli.study.routing import terminal

            return terminal.run(prepared)
        from dualpath_cli.command import lightning_cli

        return lightning_cli.run(prepared)
    except UserError as error:
        name = f" {command}" if command in COMMANDS else ""
        print(f"dualpath{name}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("; ".join([f"dualpath {command}: interrupted", *map(str, interrupt.args)]))
        return 130


def _study_several(command: str, runs: list[str], words: list[str]) -> int:
    """Studies one run after the other, then sets them side by side."""
    from dualpath_cli.command import launch

    prepared, folders, out = launch.prepare_several(command, runs, words)
    from rich.console import Console

    from dualpath_cli.command import lightning_cli
    from dualpath_cli.study.ablation import runs as ablation_runs
    from dualpath_cli.study.routing import runs as routing_runs

    console = Console()
    for number, each in enumerate(prepared, 1):
        console.print(f"run {number} of {len(prepared)}: {each.checkpoint}", highlight=False)
        lightning_cli.run(each)
    combine = {"ablate": ablation_runs.combine, "routing": routing_runs.combine}[command]
    written = combine(folders, out, console)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)
    return 0
