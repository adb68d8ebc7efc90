"""Tables that lose no number, however narrow the screen."""

import io

from rich.console import Console
from rich.table import Table

from dualpath_cli.study.tables import print_table


def printed(**console) -> str:
    table = Table("what", caption="read this")
    for name in ("deep share", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("a claim in several words", "0.123456789", "0.123456789 to 0.123456789")
    screen = io.StringIO()
    print_table(Console(file=screen, **console), table)
    return screen.getvalue()


def test_numbers_are_whole_on_a_narrow_screen_and_in_a_file():
    for console in ({"width": 20, "force_terminal": True, "color_system": None}, {"width": 20}):
        shown = printed(**console)
        for whole in ("deep share", "95 % interval", "0.123456789 to 0.123456789", "read this"):
            assert whole in shown
        assert "…" not in shown


def test_words_are_wrapped_to_the_screen():
    narrow = printed(width=20, force_terminal=True, color_system=None)
    assert "a claim in several words" not in narrow
    assert "a claim in several words" in printed(width=20)  # a file has room


def test_a_quiet_console_prints_nothing():
    assert printed(quiet=True) == ""
