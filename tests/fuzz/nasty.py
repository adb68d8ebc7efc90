"""What people, editors and dying machines put where something else belongs."""

import random
from collections.abc import Callable
from typing import Any

TEXTS = [
    "", " ", "-", "--", "---", ".", "..", "../../x", "/", "//", "~", "a/b", "a\\b", "x" * 300,
    "x" * 5000, "é" * 120, "😀", "\u202e", "a\nb", "a\tb", "\x00", "\x1b[31m", "a\udcffb",
    "[red]", "[/x]", "[bold]a[/bold]", ":smile:", "$x^$", "{}", "{0}", "%s", "%(x)s", "s3://b/x",
    "S3://b", "gs://b/x", "http://127.0.0.1:9/x", "hf:a/b", "null", "nan", "true", "1e400", "-1",
    "0x_", "'", '"', "`id`", "$(id)", "a=b", "=", "a,b", "*", "?", "[", "**/*", "con", "NAME=PATH",
    "007", "1984", "!!binary aGVsbG8=", "&a [*a]", "<<", "base", "٣", "\ufeffa", "a" + " " * 200,
]  # fmt: skip
NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 2**31, 2**32, 2**63, 2**64, 10**9, 10**18, 10**19, 10**99, -(10**30), 0.0, -0.5,
    0.5, 1.5, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"), 1e9, 7, 64, 255, 1000,
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, [], {}, [None], [[]], [1, 2], [1, 1], ["a"], {"a": 1}, {"a": {"b": {}}},
    {1: 2}, {None: None}, {"": ""}, [0], [-1], [10**9], {"class_path": "x"},
    {"class_path": "os.system", "init_args": {"command": "true"}}, {"class_path": 3},
]  # fmt: skip


def value(draw: random.Random) -> Any:
    """A value that is rarely right."""
    return draw.choice(draw.choice([TEXTS, NUMBERS, OTHERS]))


def word(draw: random.Random) -> str:
    """A value as a word of a command, which holds no NUL."""
    return str(value(draw)).replace("\x00", "0")


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Some bytes after an accident: cut, flipped, doubled, overwritten, moved."""
    way = draw.randrange(9)
    place, other = sorted(draw.choices(range(len(content) + 1), k=2))
    before, behind = content[:place], content[other:]
    lines = content.splitlines(keepends=True)
    ways: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: before,
        lambda: before + draw.randbytes(draw.randint(1, 8)) + content[place + 1 :],
        lambda: before + behind,
        lambda: content[:other] + content[place:],
        lambda: draw.randbytes(draw.choice([1, 100, 5000])),
        lambda: bytes(len(content)),
        lambda: b"".join(draw.sample(lines, len(lines))),
        lambda: before + word(draw).encode(errors="surrogateescape") + behind,
    ]
    return ways[way]()
