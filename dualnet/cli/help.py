"""The help of the command line: commands in groups, and examples."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any

GROUPS = {  # of commands, in the order of the help
    "look around": ("list", "card", "data", "tokenizer", "demo"),
    "train": ("train", "gate", "ensemble", "jobs", "tune"),
    "evaluate": ("look", "evaluate", "score", "minimal-pairs", "analyse"),
    "use": ("generate", "translate", "rescore", "export"),
}
EXAMPLES = {  # of commands, at the end of their help
    "list": 'dualnet list "dual_*"',
    "card": "dualnet card dual_mdlstm --corpus wikitext-2",
    "data": "dualnet data book.txt --tokenizer bpe:2000",
    "tokenizer train": "dualnet tokenizer train book.txt --size 2000 --output tokenizer.json",
    "tokenizer show": 'dualnet tokenizer show runs/dual --text "Hello there."',
    "train": """\
dualnet train dual_lstm --corpus ptb --output runs/dual
dualnet train dual_lstm --corpus book.txt --tokenizer bpe:2000 --output runs/book --set units=200
dualnet train dual_lstm.wikitext-2 --corpus story.txt --output runs/story --epochs 2
dualnet train encdec --pairs multi30k --source en --target de --output runs/en-de
dualnet train dual_lstm --output runs/dual --resume""",
    "gate": "dualnet gate runs/dual --output runs/gated",
    "ensemble": "dualnet ensemble runs/one runs/two --output runs/both",
    "evaluate": """\
dualnet evaluate runs/dual
dualnet evaluate runs/dual --dynamic --set learning_rate=0.001 --plot learning.png
dualnet evaluate runs/dual --cache size=2000 --temperature best
dualnet evaluate runs/en-de --protocol multi30k""",
    "generate": 'dualnet generate runs/dual --prompt "The cat" --temperature 0.8 --seed 1',
    "look": """\
dualnet look --text "The ship was built in 1904." --output page.html
dualnet look runs/lstm runs/dual article.txt --adapt --output page.html""",
    "score": """\
dualnet score runs/dual --text "the cat sat"
dualnet score runs/dual book.txt --format surprisal --words""",
    "minimal-pairs": "dualnet minimal-pairs runs/dual blimp/*.jsonl",
    "translate": "dualnet translate runs/de-en german.txt --beam 5",
    "rescore": """\
dualnet rescore runs/dual dev.nbest --tune dev.txt --metric wer --save-weights weights.toml
dualnet rescore runs/dual test.nbest --feature-weights weights.toml --best""",
    "export": """\
dualnet export runs/dual models/dual/1
dualnet export runs/dual dual.onnx""",
    "jobs": "dualnet jobs dual_table1",
    "tune": "dualnet tune dual_table1 --corpus ptb --output searches/dual --max-trials 20",
    "analyse gates": "dualnet analyse gates runs/gated --words great the",
    "analyse experts": "dualnet analyse experts runs/doc",
    "analyse rank": "dualnet analyse rank runs/one runs/two",
    "analyse curves": "dualnet analyse curves runs/one runs/two --output curves.png",
    "demo": "dualnet demo --output demo",
}


def add_command(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], None], text: str, of: str = ""
) -> Any:
    """Add the command `name`, or the action `name` of the command `of`."""
    examples = textwrap.indent(EXAMPLES[f"{of} {name}".strip()], "  ")
    command = subparsers.add_parser(
        name,
        help=text,
        description=textwrap.fill(text),
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, parser=command)
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    return command


def grouped(texts: dict[str, str]) -> str:
    """Return the commands in their groups, each with its text."""
    lines = []
    for title, names in GROUPS.items():
        lines.append(f"{title}:")
        for name in names:
            first, *rest = textwrap.wrap(" ".join(texts[name].split()), 62)
            lines += [f"  {name:<14}  {first}", *(f"{'':<18}{line}" for line in rest)]
        lines.append("")
    return "\n".join([*lines, "'dualnet COMMAND --help' shows the options of a command."])
