"""Writes the tables of docs/study.md and docs/first_study.md anew from what is kept here.

python docs/study/write.py              # after runs have been added, or a script has changed
python docs/study/write.py --check      # says which table is not what its command prints

A table has its command in a comment above it: <!-- tables.py narrow --against wide -->
"""

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from restore import run_script

PAGES = [Path(__file__).parents[1] / name for name in ("study.md", "first_study.md")]
TABLE = re.compile(r"<!-- (\w+\.py .*?|\w+\.py) -->\n\n(?:\|.*\n)*\n?")


def main() -> None:
    others = [line for page in PAGES for line in written(page, check="--check" in sys.argv)]
    if others:
        sys.exit("\n".join(others))


def written(page: Path, *, check: bool) -> list[str]:
    """Writes the tables of a page; to check it, says what they would have that it has not."""
    old = page.read_text(encoding="utf-8")
    new = TABLE.sub(lambda found: f"<!-- {found[1]} -->\n\n{table_of(found[1])}\n", old)
    if not check:
        page.write_text(new, encoding="utf-8")
    if not check or new == old:
        return []
    lines = old.splitlines()
    return [f"docs/{page.name} has not", *(line for line in new.splitlines() if line not in lines)]


def table_of(command: str) -> str:
    """The first table that a script beside this file prints."""
    script, *arguments = shlex.split(command)
    with redirect_stdout(io.StringIO()) as printed, patch.object(sys, "argv", [script, *arguments]):
        import_module(script.removesuffix(".py")).main()
    return "".join(f"{line}\n" for line in printed.getvalue().partition("\n\n")[0].splitlines())


if __name__ == "__main__":
    run_script(main)
