"""A server with one file."""

from collections.abc import Iterator

import pytest

from tests.data_prep.web import CONTENT, Web


@pytest.fixture
def web() -> Iterator[Web]:
    with Web({"/a.zst": CONTENT}) as web:
        yield web
