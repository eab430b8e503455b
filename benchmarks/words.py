"""Writes the words of a shipped model: which of them `dualnet.complete` puts together of tokens.

Usage: python benchmarks/words.py TEXT NAME...

Reads the training text, the file TEXT, and writes words.txt into zoo/pretrained/NAME, for example
`dual_lstm.english`: the 50,000 commonest words, without those that are a token of the model, and
those that are another one with a capital letter.
"""

from collections import Counter
from pathlib import Path

from dualnet import runs
from dualnet.runs.folder import WORDS, write_file
from dualnet.runs.shipped import folder_of_shipped
from dualnet.text.files import blocks
from dualnet.text.pieces import common_words, words_in


def ship_words(text: Path, names: list[str]) -> int:
    """Write the words of `text` into the folders of the models `names`; return their number."""
    counts: Counter[str] = Counter()
    for block in blocks(text, documents="blank-line"):
        counts.update(words_in(block))
    for name in names:
        folder = folder_of_shipped() / name
        vocabulary = runs.Run.open_folder(folder).vocabulary
        words = common_words(counts, vocabulary.pieces.words)
        write_file(folder, WORDS, "".join(f"{word}\n" for word in words))
    return len(words)


def main() -> None:
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(__doc__, "text", "names*")
    print(f"{ship_words(options.text, options.names):,} words")


if __name__ == "__main__":
    main()
