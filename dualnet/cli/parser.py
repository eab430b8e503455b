"""What each command takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from dualnet.cli import commands, tuning
from dualnet.cli.evaluating import evaluate


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dualnet", description="Recurrent language models: build, train, adapt, serve."
    )
    found = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        command = found.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print JSON for machines")
        return command

    command = add("list", commands.list_models, "List the models of the zoo.")
    command.add_argument("pattern", nargs="?", default="*", help='e.g. "dual_*"')
    command.add_argument("--markdown", action="store_true", help="all corpora and results")

    command = add("card", commands.card, "Show a model's card: source, sizes, recipe, results.")
    command.add_argument("name", help="model of the zoo, or a card of your own (.toml)")
    command.add_argument("--corpus", help="the published corpus whose card is meant")

    command = add("data", commands.data, "Show a corpus: tokens, types, first words.")
    command.add_argument("name", help="name of a corpus, or a folder with train, valid, test .txt")
    command.add_argument("--path", help="folder of the named corpus")
    command.add_argument("--lowercase", action="store_true")

    command = add("train", commands.train, "Train a model into a RUN folder.")
    command.add_argument("name", help="model of the zoo, or a card of your own (.toml)")
    command.add_argument("--corpus", required=True, help="name of a corpus, or a folder")
    command.add_argument(
        "--weights", metavar="RUN", help="begin with the weights of this RUN folder or .keras file"
    )
    _add_training(command, "argument of the builder or the recipe, e.g. units=200")

    command = add("gate", commands.gate, "Train an input-to-output gate over the model of a RUN.")
    command.add_argument("run_folder", metavar="RUN", help="RUN folder, of an ensemble too")
    command.add_argument("--corpus", help="default: the one that it was trained on")
    _add_training(command, "argument of the gate or the recipe, e.g. gate_units=100")

    command = add("ensemble", commands.ensemble, "Put the models of several RUNs into one RUN.")
    command.add_argument("run_folders", metavar="RUN", nargs="+", help="RUN folders, at least two")
    command.add_argument("--output", required=True, metavar="RUN", help="folder, new or empty")

    command = add("evaluate", evaluate, "Perplexity of a RUN, static or dynamic.")
    command.add_argument("run_folder", metavar="RUN")
    command.add_argument("--split", default="test", help="train, valid or test (default)")
    command.add_argument("--corpus", help="another corpus than the one it was trained on")
    command.add_argument("--dynamic", action="store_true", help="go on learning while scoring")
    command.add_argument("--rule", default="nadam", help="nadam (default), sgd or rms")
    _add_set(command, "setting of the rule, e.g. learning_rate=0.001")
    command.add_argument(
        "--temperature", type=_number_or("best", float, "a number above 0"), metavar="T",
        help="logits are divided by it; best: the best one on the validation split",
    )  # fmt: skip
    command.add_argument("--sequence-length", type=int, help="tokens per step")
    command.add_argument("--batch-size", type=int, help="streams; 1 (default) is the reference")
    command.add_argument(
        "--by-sentence", action=argparse.BooleanOptionalAction,
        help="each sentence from the zero state (default: as the RUN was trained)",
    )  # fmt: skip
    command.add_argument(
        "--samples", type=int, metavar="N", help="average probabilities over N passes with dropout"
    )
    command.add_argument(
        "--dropout-scale", type=float, metavar="S", help="of --samples: rates are multiplied by it"
    )
    command.add_argument("--seed", type=int, metavar="K", help="of the masks of --samples")
    command.add_argument(
        "--cache", nargs="*", metavar="KEY=VALUE",
        help="with a neural cache: size=500 weight=0.1 scale=1.0 start=when_full (default: as "
        "published for the card, else size=500 weight=0.2 scale=0.3 start=at_once)",
    )  # fmt: skip
    command.add_argument("--plot", metavar="PNG", help="draw the dynamic trace to this file")

    command = add("generate", commands.generate, "Go on with prompts, word by word.")
    _add_texts(command, "--prompt", "text to go on with")
    command.add_argument("--max-tokens", type=int, default=50, metavar="N", help="default: 50")
    command.add_argument("--temperature", type=float, metavar="T", help="logits are divided by it")
    command.add_argument("--greedy", action="store_true", help="take the likeliest word")
    command.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest words")
    command.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest, P probable together"
    )
    command.add_argument("--seed", type=int, metavar="N", help="for the same texts again")
    command.add_argument("--stop-at-eos", action="store_true", help="stop at the end of a line")

    command = add("score", commands.score, "Log-probability of each word of texts, and perplexity.")
    _add_texts(command, "--text", "text to score; a newline in it is <eos>")
    command.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="logits are divided by it"
    )

    command = add("export", commands.export, "Write a RUN's model for other programs.")
    command.add_argument("run_folder", metavar="RUN")
    command.add_argument("path", help="folder, new or empty; or file, ending in .onnx or .tflite")
    command.add_argument(
        "--format", default="saved_model", help="saved_model (default), onnx or litert"
    )

    command = add("jobs", tuning.jobs, "List the searches of the papers, or show one.")
    command.add_argument("name", nargs="?", help="name of a job, or a job of your own (.toml)")

    command = add("tune", tuning.tune, "Search settings with KerasTuner.")
    command.add_argument("job", help="name of a job, see `dualnet jobs`, or your own (.toml)")
    command.add_argument("--corpus", help="name or folder; default for a job over a RUN: its own")
    command.add_argument(
        "--run", dest="run_folder", metavar="RUN", help="RUN folder of a gate or evaluation job"
    )
    command.add_argument("--output", required=True, metavar="DIR", help="folder, new or empty")
    command.add_argument("--max-trials", type=int, metavar="N", help="default: the job's")
    command.add_argument("--max-hours", type=float, metavar="H", help="then stop; --resume goes on")
    command.add_argument(
        "--max-hours-per-trial", type=float, metavar="H", help="then a trial ends with what it has"
    )
    command.add_argument("--workers", type=int, default=1, metavar="N", help="trials at a time")
    command.add_argument("--tuner", help="random, bayesian, hyperband or grid; default: the job's")
    _add_set(command, "fixes a value instead of searching it; parameters=24M is a budget")
    command.add_argument("--seed", type=int, help="of the search and of each trial")
    command.add_argument("--resume", action="store_true", help="go on with the search in DIR")
    command.add_argument(
        "--checkpoint-steps", type=int, default=500, metavar="N",
        help="steps between two checkpoints of a training (default: 500)",
    )  # fmt: skip
    command.add_argument("--quiet", action="store_true", help="no table of the trials")

    command = add("demo", commands.demo, "Train, adapt, compare and serve two small models.")
    command.add_argument("--output", default="demo", help="folder (default: demo)")
    return parser


def _add_training(command: argparse.ArgumentParser, settings: str) -> None:
    command.add_argument("--output", required=True, metavar="RUN", help="folder, new or empty")
    command.add_argument("--epochs", type=int, help="those of fine-tuning come on top")
    _add_set(command, settings)
    command.add_argument(
        "--seed", type=int, help="of weights and masks (default: that of the card, else 0)"
    )
    command.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    command.add_argument(
        "--checkpoint-steps", type=int, default=500, metavar="N",
        help="steps between two checkpoints within an epoch (default: 500)",
    )  # fmt: skip
    command.add_argument(
        "--devices", type=_number_or("all", int, "a number of devices"), metavar="N",
        help="divide batches among N devices, or all; on JAX alone",
    )  # fmt: skip
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_texts(command: argparse.ArgumentParser, option: str, text: str) -> None:
    command.add_argument("run_folder", metavar="RUN", help="RUN folder or .keras file")
    command.add_argument(
        "file", nargs="?", metavar="FILE", help="one text a line; - or nothing: standard input"
    )
    command.add_argument(
        option, action="append", dest="given", metavar="TEXT", help=f"{text}; may be repeated"
    )


def _number_or(word: str, number: type, what: str) -> Callable[[str], Any]:
    """Return what reads a `number`, or the `word` that stands in its place."""

    def read(text: str) -> Any:
        try:
            return text if text == word else number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be {what}, or {word}. Received: {text!r}."
            ) from None

    return read


def _add_set(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=text
    )
