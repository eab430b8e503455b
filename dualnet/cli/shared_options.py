"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dualnet.cli.option_types import number, number_or, run_path

MODEL = "name of a model of the zoo, or of a shipped one, or the path of your own card (.toml)"
RUN = "RUN folder of a trained model, or the name of one that is shipped"
RUN_OR_KERAS = f"{RUN}, or a .keras file"
CORPUS = (
    "ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and "
    "test.txt, or a text file"
)
OUTPUT = "folder to write, new or empty"

# fmt: off


def add_reading(option: Callable[..., Any]) -> None:
    option("--tokenizer", metavar="TOKENIZER",
           help="words (default), characters, bytes; bpe:N, unigram:N or word-piece:N, learnt from "
           "train with N units; or the path of a tokenizer.json")
    option("--documents", metavar="END",
           help="what ends a document (read as <eos>): line (default), blank-line or file")
    add_fractions(option)


def add_fractions(option: Callable[..., Any]) -> None:
    option("--fractions", type=number, nargs=3, metavar=("TRAIN", "VALID", "TEST"),
           help="shares of the lines of a text file (default: 90 5 5)")


def add_pairs(option: Callable[..., Any], text: str) -> None:
    option("--pairs", metavar="FOLDER",
           help=f"{text}: a folder with train.en, train.de and so on, or 'numbers' (digits and "
           "words, to try it out)")
    option("--source", metavar="LANGUAGE",
           help="language of the source texts (default: en, with --files: source)")
    option("--target", metavar="LANGUAGE",
           help="language of the target texts (default: de, with --files: target)")
    option("--files", nargs=6, metavar=("TRAIN_SOURCE", "TRAIN_TARGET", "VALID_SOURCE",
                                        "VALID_TARGET", "TEST_SOURCE", "TEST_TARGET"),
           help="files of --pairs with other names, e.g. articles and headlines")


def add_reading_pairs(option: Callable[..., Any]) -> None:
    option("--source-tokenizer", metavar="TOKENIZER",
           help="tokeniser of the source of --pairs; --tokenizer is then that of the target "
           "(default: one for both, learnt from both: that of --tokenizer, else bpe:4000)")
    option("--max-tokens", type=int, metavar="N",
           help="leave pairs with more tokens on a side out of train (default: 250)")


def add_training(option: Callable[..., Any], settings: str) -> None:
    option("--output", required=True, metavar="RUN", help=OUTPUT)
    option("--epochs", type=int, metavar="N",
           help="training epochs, not counting fine-tuning (default: as in the card)")
    add_set(option, settings)
    option("--seed", type=int, metavar="N",
           help="random seed of weights and dropout masks (default: that of the card, else 0)")
    option("--resume", action="store_true",
           help="continue the training in --output from its last checkpoint")
    add_checkpoint_steps(option)
    option("--devices", type=number_or("all", int, "a number of devices"), metavar="N",
           help="divide batches among N devices, or 'all' (JAX only)")
    option("--quiet", action="store_true", help="do not show the progress bar")


def add_checkpoint_steps(option: Callable[..., Any]) -> None:
    option("--checkpoint-steps", type=int, default=500, metavar="N",
           help="training steps between checkpoints within an epoch (default: 500)")


def add_texts(option: Callable[..., Any], name: str, text: str) -> None:
    option("run_folder", type=run_path, metavar="RUN", help=RUN_OR_KERAS)
    option("file", nargs="?", metavar="FILE",
           help="file with one text per line; '-' or omitted: standard input")
    option(name, action="append", dest="texts", metavar="TEXT", help=f"{text}; repeatable")


def add_set(option: Callable[..., Any], text: str) -> None:
    option("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=text)

# fmt: on
