"""Pages that are opened in a browser."""

from pathlib import Path

import pytest

from dualpath_cli.study.routing.page.page import write
from tests.study.routing.pages import FIRST, LAYERS, OTHER, SECOND, VALUES, model


@pytest.fixture
def visit(chromium, tmp_path: Path):
    """Opens a page of examples, and at the end asserts that it met no error and no network."""
    met, contexts = [], []

    def opened(
        examples=(FIRST, SECOND, OTHER), layers=LAYERS, width=1300, scheme="light", *,
        models=None, fragment="", granted=(),
    ):  # fmt: skip
        models = models or [model(examples)]
        path = tmp_path / "page.html"
        write(path, "small/mix", [("model", "x")], layers, models, VALUES)
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            offline=True,
            permissions=list(granted),
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: met.append(message.text))
        tab.on("pageerror", lambda error: met.append(str(error)))
        tab.on("dialog", lambda dialog: met.append(dialog.message))
        tab.on("request", lambda request: met.append(request.url))
        tab.goto(path.as_uri() + fragment)
        tab.wait_for_selector(".token")  # once the numbers are unpacked
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert {place.partition("#")[0] for place in met} <= {
        (tmp_path / "page.html").as_uri(),
        "data:,",
    }
