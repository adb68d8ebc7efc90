"""GSM8K's questions as prompts, and how many answers end in the right number.

python exact_match.py prompts test.jsonl 200 questions.jsonl
python exact_match.py score answers.jsonl [answers.jsonl ...]
"""

import json
import re
import sys
from pathlib import Path


def number(answer: str) -> str | None:
    """What stands after ####, without commas."""
    found = re.search(r"####\s*(-?[\d,.]*\d)", answer)
    return found and found[1].replace(",", "")


def main(task: str, *words: str) -> None:
    if task == "prompts":
        source, count, out = words
        rows = [json.loads(line) for line in Path(source).read_text().splitlines()[: int(count)]]
        prompts = [
            {"prompt": f"Question: {row['question']}\nAnswer:", "gold": number(row["answer"])}
            for row in rows
        ]
        Path(out).write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        return
    for name in words:
        rows = [json.loads(line) for line in Path(name).read_text().splitlines()]
        given = [number(row["text"]) for row in rows]
        right = sum(found == row["gold"] for found, row in zip(given, rows, strict=True))
        answered = sum(found is not None for found in given)
        print(f"{name}: {right} of {len(rows)} right, {answered} end in a number")


if __name__ == "__main__":
    main(*sys.argv[1:])
