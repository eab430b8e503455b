"""Counts as the dual-connection paper probably does: a marker before and after the words of a line.

Usage: python benchmarks/markers.py make CORPUS FOLDER
       python benchmarks/markers.py read RUN FOLDER

`make` writes a corpus such as ptb with two markers a line, and its vocabulary, which is the same:
after each line comes an empty one, whose `<eos>` stands before the words of the next. `read` prints
the perplexities of a model that was trained on such a text in both countings. They have one loss:
the second divides it by the tokens that a text with one marker has, 73,760 of 77,130 in the
validation text of PTB. In benchmarks/published.toml, the groups `markers` and `one-marker` train
the same models on both.
"""

import math
import sys
from pathlib import Path

import dualnet
from dualnet import corpora


def make(name: str, folder: Path) -> None:
    corpus = corpora.load(name)
    folder.mkdir(parents=True)
    corpus.vocabulary.save(folder / "vocabulary.txt")
    for split in corpora.SPLITS:
        text = corpus.vocabulary.decode(corpus.split(split))
        (folder / f"{split}.txt").write_text(text.replace("\n", "\n\n"), "utf-8")
        print(f"{split}: {len(corpus.split(split)) + text.count(chr(10)):,} tokens")


def read(run: str, folder: Path) -> None:
    model = dualnet.load(run)
    corpus = corpora.load(folder, tokenizer=folder / "vocabulary.txt")
    for split in ("valid", "test"):
        tokens = corpus.split(split)
        result = dualnet.evaluate(model, tokens)
        added = int((tokens == corpus.vocabulary.eos_id).sum()) // 2
        loss = math.log(result.perplexity) * result.tokens
        once = math.exp(loss / (result.tokens - added))
        print(f"{split}: {result.perplexity:.2f} of two markers a line, {once:.2f} of one")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", name, folder]:
            make(name, Path(folder))
        case ["read", run, folder]:
            read(run, Path(folder))
        case _:
            sys.exit(__doc__)
