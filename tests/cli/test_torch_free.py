"""`generate` and `evaluate` answer --help and mistakes before torch is imported."""

from tests.cli.test_cli import SLOW, run_without_slow_imports


def test_help_and_mistakes_need_nothing_slow(trained, tmp_path):
    run = trained()
    (tmp_path / "tasks").mkdir()
    lines = {
        "generate --help": 0,
        "generate --ckpt_path nowhere": 2,
        f"generate --ckpt_path {run} --intervention kv_slots=0": 2,
        f"generate --ckpt_path {run} --intervention layers=9 gates=1,0": 2,
        f"generate --ckpt_path {run} --prompt '{'tell ' * 70}'": 2,
        "evaluate --help": 0,
        "evaluate --ckpt_path nowhere --out o": 2,
        f"evaluate --ckpt_path {run} --out o --data tasks --tasks hellaswag": 2,
        f"evaluate --ckpt_path {run} --out o --loops 0": 2,
    }
    answers = run_without_slow_imports(list(lines), tmp_path, (*SLOW, "transformers", "datasets"))
    assert [answer["code"] for answer in answers] == list(lines.values())
    assert "window has room for 15" in answers[4]["err"]
