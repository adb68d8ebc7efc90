"""Words of other trainers lead to keys that there are, and none to two."""

import inspect
from collections import Counter

import pytest
from lightning.pytorch import Trainer

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.arguments import read_arguments
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.options import parser_of
from dualpath_cli.recipe.elsewhere import TABLE, TRAINERS, WITHDRAWN

OPTIONS = parser_of(COMMANDS["fit"]).options()
NAMES = {
    (row.key, name): row
    for row in TABLE
    for one in TRAINERS
    for name in getattr(row, one).split()
}
"""The row of each name, by its key and the name."""
DECIDED = {
    "barebones",
    "enable_autolog_hparams",
    "enable_model_summary",
    "enable_progress_bar",
    "inference_mode",
    "limit_predict_batches",
    "limit_test_batches",
    "model_registry",
    "reload_dataloaders_every_n_epochs",
    "sync_batchnorm",
    "use_distributed_sampler",
}
"""Arguments of Lightning's Trainer that no recipe has."""


def test_each_name_has_one_counterpart():
    assert [
        name for name, times in Counter(n for _, n in NAMES).items() if times > 1
    ] == []


def test_no_bare_name_hides_a_key_of_this_name():
    ours = {key.rpartition(".")[2]: key for key in OPTIONS}
    assert [
        name for key, name in NAMES if ours.get(name, key) != key and "." not in name
    ] == []


def test_every_argument_of_lightnings_trainer_is_a_key_or_has_a_counterpart_or_none():
    theirs = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    offered = {key.removeprefix("trainer.") for key in OPTIONS}
    assert theirs - offered - {name for _, name in NAMES} == DECIDED


@pytest.mark.parametrize(("key", "name"), sorted(NAMES))
def test_a_word_of_another_trainer_is_refused_with_its_counterpart(key, name):
    with pytest.raises(UserError) as error:
        read_arguments(COMMANDS["fit"], ["--config", "x", f"--{name}", "1"]).over({})
    note = NAMES[key, name].note
    ways_out = [f"here it is '{OPTIONS[key]}'"] if key else []
    ways_out += [note] if note else []
    assert str(error.value).endswith(f"'--{name}'; {': '.join(ways_out)}")


def test_bf16_of_other_trainers_is_the_precision_that_keeps_weights_in_float32():
    (row,) = (row for row in TABLE if row.key == "trainer.precision")
    assert "bf16-mixed" in row.note
    assert "bf16-true" not in row.note


@pytest.mark.parametrize("command", WITHDRAWN)
def test_a_withdrawn_option_is_gone_and_named_with_its_replacement(command):
    for option, instead in WITHDRAWN[command].items():
        assert option not in parser_of(COMMANDS[command]).options()
        with pytest.raises(UserError, match="it was withdrawn: ") as error:
            read_arguments(COMMANDS[command], [f"--{option}=1"]).over({})
        assert str(error.value).endswith(instead)
