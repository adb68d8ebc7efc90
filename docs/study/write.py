"""Writes the tables of docs/study.md anew from what is kept here.

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

PAGE = Path(__file__).parent.with_suffix(".md")
TABLE = re.compile(r"<!-- (\w+\.py .*?|\w+\.py) -->\n\n((?:\|.*\n)*)")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = TABLE.sub(lambda found: f"<!-- {found[1]} -->\n\n{table_of(found[1])}", text)
    if "--check" not in sys.argv:
        PAGE.write_text(written, encoding="utf-8")
    elif written != text:
        old, new = text.splitlines(), written.splitlines()
        sys.exit("\n".join(["docs/study.md has not", *(line for line in new if line not in old)]))


def table_of(command: str) -> str:
    """The first table that a script beside this file prints."""
    script, *arguments = shlex.split(command)
    with redirect_stdout(io.StringIO()) as printed, patch.object(sys, "argv", [script, *arguments]):
        import_module(script.removesuffix(".py")).main()
    return "".join(f"{line}\n" for line in printed.getvalue().partition("\n\n")[0].splitlines())


if __name__ == "__main__":
    run_script(main)
