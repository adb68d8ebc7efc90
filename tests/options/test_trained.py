"""A trained model that words name, without its weights."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.options.trained import Trained
from dualpath_cli.run.run_folder import Run
from tests.model.small_models import small
from tests.small_tokenizer import tokenizer_with


def test_a_tokenizer_that_is_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_with([])
    tokenizer.save(tmp_path)
    run = Run(tmp_path, tmp_path / "checkpoint", step=1, home=tmp_path)

    def trained(rows: int) -> Trained:
        settings: Any = SimpleNamespace(model=small(vocab_size=rows))
        return Trained("it", run, settings)

    assert trained(257).tokenizer().eot_id == tokenizer.eot_id
    with pytest.raises(UserError, match="the tokenizer has 257 ids, the model 256"):
        trained(256).tokenizer()
