"""The loss of a model as transformers runs it, on the windows of `dualpath validate`.

    python benchmarks/pretrained.py MODEL RUN LENGTH TOKENS NAME=FILE ...

MODEL is a folder of transformers or a GGUF file; RUN is its retrofitted folder, for the tokenizer;
LENGTH and TOKENS are those of --model.max_seq_len and --data.val_tokens. docs/walks/pretrained.md
has the numbers.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import document_windows


@torch.no_grad()
def main() -> None:
    path, run, length, tokens = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5])
    gguf = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if gguf else path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **gguf).eval()
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    for text in sys.argv[5:]:
        name, _, file = text.partition("=")
        documents = read_documents(Source(name, Path(file)))
        windows, _ = document_windows(documents, tokenizer, length, tokens)
        nats = scored = 0
        for window in windows:
            ids = torch.from_numpy(window.astype("int64"))
            logits = model(ids[None, :-1]).logits[0]
            nats += F.cross_entropy(logits, ids[1:], reduction="sum").item()
            scored += len(ids) - 1
        print(f"{name}: {nats / scored:.4f} nats a token over {scored:,} tokens")


if __name__ == "__main__":
    main()
