"""A browser, where there is one."""

import shutil

import pytest


@pytest.fixture(scope="module")
def chromium():
    # Not for the whole session: playwright's event loop runs on meanwhile, beside which other tests
    # cannot run one of their own.
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the program chromium")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
