"""Writes the tables of docs/study.md anew from what is kept here.

python docs/study/write.py              # after runs have been added, or a script has changed
python docs/study/write.py --check      # says which table is not what its command prints

A table has its command in a comment above it: <!-- tables.py narrow --against wide -->
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

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
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr.strip().splitlines()[-1]}")
    return "".join(f"{line}\n" for line in done.stdout.partition("\n\n")[0].splitlines())


if __name__ == "__main__":
    main()
