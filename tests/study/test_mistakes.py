"""Mistakes in the words of a study: one line, exit code 2, before the study begins."""

import re

import pytest

from dualpath_cli.cli.main import main
from tests.command.test_settings import OPTIONS

ABLATE, ROUTING = "ablate --ckpt_path .", "routing --ckpt_path ."
SCORED, READ = (f"{words} --data.val.held_out text.txt" for words in (ABLATE, ROUTING))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{ABLATE} nowhere --out x", "no run or checkpoint at 'nowhere'"),
        (f"{ABLATE} .", "several RUNs need --out DIR"),
        (f"{ABLATE} --ckpt_path . --out x", "names two runs whose files would go to 'x/"),
        (ABLATE, "the run names no validation set; give a text: --sources NAME=PATH"),
        (f"{ABLATE} --sources a=txet.txt", "did you mean 'text.txt'?"),
        (f"{ABLATE} --sources a=text.txt a=recipe.yaml", "its format is not known"),
        (f"{ABLATE} --sources text.txt text=text.txt", "has two texts named 'text'"),
        (f"{SCORED} --max_tokens lots", "--max-tokens must be a whole"),
        (f"{SCORED} --out text.txt/x", "'text.txt' is a file"),
        (f"{SCORED} --suite layer", "did you mean 'layers'?"),
        (f"{SCORED} --loops 3-1", "--loops '3-1': '3-1' is no number"),
        (f"{SCORED} --loops 0", "is no number or range from 1 to 100"),
        (f"{SCORED} --seeds 5000", "--seeds must be a whole number from 1 to 1,000"),
        (f"{SCORED} --classes a", "give NAME=UPOS,UPOS, maybe with :wide or :deep"),
        (f"{SCORED} --classes a=NUMB:wide", "did you mean 'NUM'?"),
        (f"{SCORED} --classes a=NUM:up", "the path is wide or deep"),
        (f"{SCORED} --classes a=NUM:wide a=SYM:wide", "--classes has two classes named 'a'"),
        # A pass is never cut short.
        (f"{SCORED} --trainer.overfit_batches 1", "trainer.overfit_batches is not used"),
        (f"{ROUTING} . --text a", "--text takes one RUN"),
        (f"{ROUTING} --text {'the_' * 20}", "has 60 tokens, the model takes 15; put it into"),
        (f"{ROUTING} --text=\t", "--text is empty"),
        (f"{ROUTING} --text a --layer 2", "--layer 2 has no gates; layers 0, 1 have"),
        (f"{ROUTING} --text a --sequences 2", "--sequences goes with sources, not with --text"),
        (f"{READ} --layer 0", "--layer goes with --text"),
        (f"{READ} --examples held_oot:1", "no source 'held_oot'; did you mean 'held_out'?"),
        (f"{READ} --examples held_out", "give SOURCE:N, such as gsm8k:0"),
        (f"{READ} --anchor=", "--anchor is empty"),
        (f"{READ} --beside_loops 0", "--beside-loops must be a whole number from 1 on, not '0'"),
        (f"{READ} --beside_loops 4", "4: these are the loops that the model was trained with"),
        (f"{ROUTING} --text a --no_costs", "--no-costs is about the page; give --text an --out"),
        (f"{READ} --tagger nowhere", "download nowhere; or without parts of speech: --tagger none"),
        (f"{READ} --model.block wide", "the model has no dual block"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, message, run_folder, capsys, monkeypatch):
    monkeypatch.chdir(run_folder)
    monkeypatch.setattr("dualpath_cli.cli.lightning.run", lambda launch: 0)
    command, *rest = words.split(" ")
    assert main([command, *rest]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dualpath {command}: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("command", ["ablate", "routing"])
def test_help_has_a_sentence_for_each_option(command, capsys):
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    own = re.findall(rf"^{command} (--(?!help).+)", OPTIONS.read_text(), re.MULTILINE)
    assert len(own) > 8
    for option in own:
        assert re.search(rf" {option} [^.]*[A-Z][^.]+\.", text), option
