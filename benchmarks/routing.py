"""What `dualpath routing` costs beside plain validation passes over the same tokens.

python -m benchmarks.routing --run RUN --source NAME=PATH --tagger PIPELINE

By turns, in one process after a first round that does not count: `dualpath validate` twice, for
routing reads the untrained model as well, and `dualpath routing`, each from the checked recipe to
its end; and tagging alone, of tokens cut before the clock starts. The aim is at most 1.3 times two
validations plus tagging.
"""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.studies import argument_parser, compare, cut
from dualpath_cli.command import launch, lightning_cli
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.tags import tag


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--tagger", required=True, help="spaCy pipeline, by name or path.")
    options = parser.parse_args(arguments)
    name, _, path = options.source.partition("=")
    run = ["--ckpt_path", options.run]
    plain = ["--data.val", f'{{"{name}": "{path}"}}', "--data.val_tokens", options.tokens]
    words = ["--sources", options.source, "--max_tokens", options.tokens]
    words += ["--tagger", options.tagger, "--out"]

    def prepare(out: str) -> dict[str, Callable[[], object]]:
        validate = launch.read(COMMANDS["validate"], [*run, *plain])
        routing = launch.read(COMMANDS["routing"], [*run, *words, out])
        sequences, tokenizer = cut(routing, options.source)
        return {
            "dualpath validate, twice": lambda: [lightning_cli.run(validate) for _ in range(2)],
            # Loading the pipeline counts.
            "tagging": lambda: tag(sequences, tokenizer, Tagger(options.tagger)),
            "dualpath routing": partial(lightning_cli.run, routing),
        }

    compare(options, prepare, warm_up=1)


if __name__ == "__main__":
    main()
