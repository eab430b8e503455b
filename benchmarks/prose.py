"""Turns WikiText-2 into prose, and learns the tokeniser of the shipped models from it.

Usage: python benchmarks/prose.py FOLDER_OF_WIKITEXT-2 OUTPUT
Needs the extra `translate`. Writes train.txt, valid.txt and test.txt without the marks of
tokenisation: ` @-@ ` is joined, punctuation stands where writers put it (by sacremoses), and blank
lines are left out. `tokenizer.json` has 8,000 units of byte-level BPE, learnt from train; `<unk>`,
which stands for the words that WikiText-2 leaves out, is one of them.
"""

import re

from options import options_of
from sacremoses import MosesDetokenizer

from dualnet._files import write_whole
from dualnet.text import train_tokenizer

SPLITS = ("train", "valid", "test")
JOINED = [
    (re.compile(r" @(\W)@ "), r"\1"),  # role @-@ playing
    (re.compile(r"(?<=\d) \N{EN DASH} (?=\d)"), "\N{EN DASH}"),  # between years
    (re.compile(r"(?<=\w) / (?=\w)"), "/"),
    (re.compile(r" ([°\N{PRIME}\N{DOUBLE PRIME}])(?= |$)"), r"\1"),
    (re.compile(r"= (?==)|(?<==) =(?!\w)"), "="),  # = = Gameplay = =
]


def prose(line: str, detokenizer: MosesDetokenizer) -> str:
    """Return a line of WikiText as its writer had it."""
    for pattern, joined in JOINED:
        line = pattern.sub(joined, line)
    return detokenizer.detokenize(line.split(), unescape=False)


def main() -> None:
    options = options_of(__doc__, "folder", "output", size=8_000)
    options.output.mkdir(parents=True, exist_ok=True)
    detokenizer = MosesDetokenizer("en")
    for split in SPLITS:
        lines = (options.folder / f"{split}.txt").read_text("utf-8").split("\n")
        written = [prose(line, detokenizer) for line in lines if line.strip()]
        write_whole(options.output / f"{split}.txt", "".join(f"{line}\n" for line in written))
        print(f"{split}: {len(written):,} lines", flush=True)
    text = (options.output / "train.txt").read_text("utf-8")
    tokenizer = train_tokenizer([text], "bpe", size=options.size, special=["<unk>"])
    tokenizer.save(options.output / "tokenizer.json")
    print(f"tokenizer.json: {len(tokenizer):,} units")


if __name__ == "__main__":
    main()
