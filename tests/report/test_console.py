"""A text from outside reaches a terminal as characters, and a file as it is."""

import ast
import io
from pathlib import Path

import pytest

from dualpath_cli.base.output import printable, say
from dualpath_cli.decoding import texts
from dualpath_cli.report.console import (
    Progress,
    counted,
    plain_console,
    print_excerpt,
)
from dualpath_cli.report.table import Column, Table, show

PACKAGES = (Path(texts.__file__).parents[1], Path(__file__).parents[2] / "data_prep")
COMMANDS = {
    "color": "\x1b[31m",
    "of one byte": "\x9b2J",
    "title": "\x1b]0;mine\x07",
    "delete": "\x7f",
    "back": "\b\b",
    "line": "\r",
    "page": "\f",
    "writing direction": "\u202e",
}
ALL = "a" + "b".join(COMMANDS.values()) + "é\u00a0日\u200d"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(console, text):
    """The outputs of a text by each way in which commands print one."""
    columns = [Column(text), Column("n", ",")]
    ways = {
        "generate": lambda: texts._show(console, text, dim=True),
        "a line": lambda: console.print(text, highlight=False, soft_wrap=True),
        "an excerpt": lambda: print_excerpt(console, text, indent=2),
        "a table": lambda: show(
            console, Table(columns, [(text, 1)], title=text, caption=text)
        ),
        "a line beside": lambda: say(text, console.file),
        "a bar": lambda: _bar(console, text),
    }
    for name, way in ways.items():
        console.file.seek(0)
        console.file.truncate()
        way()
        yield name, console.file.getvalue()


def _bar(console, text):
    with Progress(console, text, counted("texts"), 3) as progress:
        progress.advance(1, status=text)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("as_file", [False, True], ids=["as it is", "taken for a file"])
def test_no_way_of_printing_gives_a_terminal_a_text_that_it_obeys(name, as_file):
    options = {"force_terminal": False} if as_file else {"force_terminal": True}
    console = plain_console(file=Screen(), width=300, color_system=None, **options)
    text = f"<{COMMANDS[name]}>"
    for way, output in written(console, text):
        assert text not in output, way
        if way in ("generate", "a line", "a line beside"):
            assert output.rstrip("\n") == f"<{repr(COMMANDS[name])[1:-1]}>", way


def test_a_file_gets_the_text_of_generate_byte_for_byte():
    file = io.StringIO()
    console = plain_console(file=file)
    for part in (ALL, "\n", "[red]"):
        texts._show(console, part)
    assert file.getvalue() == f"{ALL}\n[red]"


def test_spaces_and_joiners_of_writing_are_shown_as_they_are():
    text = "10\u202f%\u3000日本\u00a0می\u200cخواهم 👩\u200d🔬\n\tend"
    assert printable(text) == text
    assert printable("\u202eab\u2066", keep="") == "\\u202eab\\u2066"


def test_only_one_function_prints_and_only_one_module_makes_consoles():
    """Or hands `print` on; `curve.py` is a script."""
    files = {path for root in PACKAGES for path in root.rglob("*.py")}
    prints, consoles = set(), set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and node.id == "print":
                prints.add(path.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                consoles |= {path.name} if node.func.id == "Console" else set()
    assert prints == {"output.py", "curve.py"}
    assert consoles == set()
