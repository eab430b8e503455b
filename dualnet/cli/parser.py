"""The argument parser: the commands, their options and help texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from dualnet import zoo
from dualnet.cli import analysing, commands, listing, tokenizing, tuning
from dualnet.cli.evaluating import evaluate
from dualnet.cli.help import add_command, grouped
from dualnet.cli.looking import look
from dualnet.cli.option_types import Version, number_or, run_path
from dualnet.cli.pairs import minimal_pairs
from dualnet.cli.rescoring import rescore
from dualnet.cli.scoring import score
from dualnet.cli.shared_options import (
    CORPUS,
    MODEL,
    OUTPUT,
    RUN,
    RUN_OR_KERAS,
    add_checkpoint_steps,
    add_fractions,
    add_pairs,
    add_reading,
    add_reading_pairs,
    add_set,
    add_texts,
    add_training,
)  # fmt: skip
from dualnet.cli.translating import translate

# fmt: off


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dualnet",
        usage="dualnet [--help] [--version] COMMAND ...",
        description="Recurrent language models: train, adapt at test time, generate and serve.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, help="print the version and exit")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="dualnet", help=argparse.SUPPRESS
    )

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Callable[..., Any]:
        """Add a command; return the method that adds its options."""
        return add_command(subparsers, name, run, text).add_argument

    def group(title: str) -> Callable[..., Any]:
        """Return the method that adds options to a new group of the newest command."""
        return [*subparsers.choices.values()][-1].add_argument_group(title).add_argument

    option = add("list", listing.list_models, "List the models of the zoo.")
    option("pattern", metavar="PATTERN", nargs="?", default="*",
           help='list only names that match, e.g. "dual_*"')
    option("--pretrained", action="store_true",
           help="list the trained models that are shipped, with their test results")
    option("--markdown", action="store_true",
           help="print a Markdown table with the results on all corpora")

    option = add("card", listing.card, "Show the card of a model: paper, sizes, recipe, results.")
    option("name", metavar="MODEL", help=MODEL).completer = _models
    option("--corpus", help="published corpus to show the card for (default: the first one)")

    option = add("data", commands.data, "Show a corpus: counts of tokens and words, first words.")
    option("name", metavar="CORPUS", nargs="?", help=CORPUS)
    option("--path", metavar="FOLDER", help="folder with the files of a named corpus")
    option("--lowercase", action="store_true", help="convert the text to lower case")
    add_reading(option)
    add_pairs(option, "a corpus of pairs")
    add_reading_pairs(option)

    _add_tokenizer(subparsers)

    option = add("train", commands.train, "Train a model and save it in a RUN folder.")
    option("name", metavar="MODEL", help=MODEL).completer = _models
    option("--corpus", help=CORPUS)
    add_reading(option)
    option = group("pairs")
    add_pairs(option, "for a model that translates")
    add_reading_pairs(option)
    option("--lowercase", action="store_true", help="convert the pairs to lower case first")
    option = group("training")
    option("--card-for", metavar="CORPUS",
           help="use the sizes and the recipe that MODEL has for this corpus, e.g. multi30k "
           "(default: those for the corpus itself, else the first)")
    option("--weights", type=run_path, metavar="RUN",
           help="start from the weights of this RUN folder, shipped model or .keras file")
    option("--seeds", type=int, nargs="+", metavar="N",
           help="train once for each of these seeds, into RUN/seed-N, and show mean and deviation")
    add_training(option, "override arguments of the builder or the recipe, e.g. units=200")

    option = add("gate", commands.gate,
                 "Train an input-to-output gate on top of the frozen model of a RUN.")
    option("run_folder", type=run_path, metavar="RUN", help=RUN)
    option("--corpus", help=f"{CORPUS} (default: the corpus that RUN was trained on)")
    add_training(option, "override arguments of the gate or the recipe, e.g. gate_units=100")

    option = add("ensemble", commands.ensemble, "Combine the models of several RUNs in a new RUN.")
    option("run_folders", type=run_path, metavar="RUN", nargs="+", help=f"{RUN}; at least two")
    option("--output", required=True, metavar="RUN", help=OUTPUT)

    option = add("evaluate", evaluate, "Compute the perplexity of a RUN, static or dynamic.")
    option("run_folder", type=run_path, metavar="RUN", help=RUN_OR_KERAS)
    option("--split", default="test", help="train, valid or test (default: test)")
    option("--corpus", help=f"{CORPUS} (default: the corpus that RUN was trained on)")
    option("--plot", metavar="PNG", help="plot the perplexity of --dynamic by position")
    option = group("learning while reading")
    option("--dynamic", action="store_true",
           help="dynamic evaluation: learn from each segment after scoring it")
    option("--rule",
           help="update rule of --dynamic: nadam, sgd, rms or 'published' for rule and settings of "
           "the paper, if the card of the model has them (default: nadam; shipped models have a "
           "rule of their own)")
    option("--keep", metavar="RUN",
           help="write the model that --dynamic has adapted into this new RUN folder")
    add_set(option, "override settings of the evaluation, e.g. learning_rate=0.001")
    option = group("how to read")
    option("--temperature", type=number_or("best", float, "a number above 0"), metavar="T",
           help="divide the logits by T; 'best': the T that is best on the validation split "
           "(default: 1)")
    option("--sequence-length", type=int, metavar="N",
           help="tokens per segment, after which --dynamic updates the weights and --samples draws "
           "new masks")
    option("--batch-size", type=int, metavar="N",
           help="read the text as N parallel streams: faster, but each starts from the zero state "
           "(default: 1)")
    option("--window", type=int, metavar="N",
           help="zero the state every N tokens (default: carry it over the whole text)")
    option("--by-sentence", action=argparse.BooleanOptionalAction,
           help="read each sentence from the zero state, and with --dynamic learn from it in one "
           "step (default: as RUN was trained; with --dynamic, as one stream)")
    option("--top-k", type=int, nargs="+", metavar="K",
           help="also compute the share of tokens that are among the K likeliest")
    option = group("dropout samples and cache")
    option("--samples", type=int, metavar="N",
           help="Monte Carlo dropout: average the probabilities of N passes with dropout")
    option("--dropout-scale", type=float, metavar="S",
           help="multiply the dropout rates of --samples by S")
    option("--seed", type=int, metavar="N", help="random seed of the masks of --samples")
    option("--cache", nargs="*", metavar="KEY=VALUE",
           help="add a neural cache, e.g. size=500 (words) weight=0.1 scale=1.0 start=when_full "
           "(default: as published for the model, else size=500 weight=0.2 scale=0.3 "
           "start=at_once)")
    option = group("models that translate")
    add_pairs(option, "pairs to evaluate on, by default those that RUN was trained on")
    option("--beam", type=int, metavar="N",
           help="hypotheses of the beam search (default: 5)")
    option("--protocol",
           help="sacrebleu (BLEU and chrF of the plain text), multi30k "
           "(BLEU of lower-cased Moses tokens) or rouge (headlines) (default: sacrebleu)")

    option = add("generate", commands.generate, "Continue prompts with generated text.")
    add_texts(option, "--prompt", "prompt to continue")
    option("--max-tokens", type=int, default=50, metavar="N",
           help="tokens to generate per prompt (default: 50)")
    option("--temperature", type=float, metavar="T",
           help="divide the logits by T: low values give likelier text (default: 1)")
    option("--greedy", action="store_true", help="always take the likeliest token")
    option("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    option("--top-p", type=float, metavar="P",
           help="draw from the fewest tokens whose probabilities reach P, 0 < P <= 1")
    option("--seed", type=int, metavar="N", help="random seed; an equal seed gives an equal text")
    option("--stop-at-eos", action="store_true",
           help="stop at the end of a line or document (<eos>)")
    option("--allow-unknown", action="store_true", help="also draw <unk>, like any other token")
    option = group("beam search")
    option("--beam", type=int, metavar="N",
           help="take the likeliest text that beam search with N hypotheses finds; draw nothing")
    option("--nbest", "--n-best", dest="n_best", type=int, metavar="N",
           help="with --beam: print the N likeliest texts, the likeliest first")
    option("--length-normalization", type=float, default=0.0, metavar="A",
           help="with --beam: divide log-probabilities by length ** A (default: 0)")

    option = add("score", score,
                 "Compute the log-probability, in nats, of each word of texts, and the perplexity.")
    add_texts(option, "--text", "text to score, in which a newline is <eos>")
    option("--temperature", type=float, default=1.0, metavar="T",
           help="divide the logits by T (default: 1)")
    option = group("surprisal")
    option("--format", metavar="surprisal",
           help="'surprisal': print a tab-separated row for each token, with its surprisal in bits")
    option("--entropy", action="store_true",
           help="with --format surprisal: add the entropy, in bits, of each prediction")
    option("--words", action="store_true",
           help="with --format surprisal: print a row for each word, with the sum over its tokens; "
           "white space separates words")
    option("--adapt", action="store_true",
           help="with --format surprisal: learn from each text, in one step, after scoring it")
    option("--rule",
           help="update rule of --adapt: nadam, sgd, rms or published (default: nadam; shipped "
           "models have a rule of their own)")
    add_set(option, "override settings of --adapt, e.g. learning_rate=0.001")

    option = add("look", look, "Write a page that shows models reading a text, word by word.")
    option("run_folders", type=run_path, metavar="RUN", nargs="*",
           help=f"{RUN_OR_KERAS} (default: the shipped models); the last one may be a file with "
                "the text, '-' for standard input")
    option("--text", action="append", dest="texts", metavar="TEXT",
           help="text to read; repeatable, one line each")
    option("--output", required=True, metavar="HTML", help="page to write")
    option("--adapt", action="store_true",
           help="read the text a second time, learning from each segment after scoring it")
    option("--rule",
           help="update rule of --adapt: nadam, sgd, or rms with the statistics of the text that "
           "the first RUN was trained on (default: nadam; shipped models have a rule of their "
           "own)")
    add_set(option, "override settings of --adapt, e.g. learning_rate=0.001 sequence_length=20")
    option("--temperature", type=float, default=1.0, metavar="T",
           help="divide the logits by T (default: 1)")
    subparsers.choices["look"].set_defaults(file=None)  # the last RUN, or what follows an option

    option = add("minimal-pairs", minimal_pairs,
                 "Compute how often a RUN prefers the acceptable one of two sentences (BLiMP).")
    option("run_folder", type=run_path, metavar="RUN", help=RUN_OR_KERAS)
    option("files", metavar="FILE", nargs="+",
           help="file with one JSON object per line: sentence_good, sentence_bad and, optionally, "
           "UID and field")

    option = add("translate", translate, "Translate texts, line by line.")
    add_texts(option, "--text", "text to translate")
    option("--ensemble", type=run_path, nargs="+", default=[], metavar="RUN",
           help="further RUNs, with which to average the probabilities")
    option("--beam", type=int, default=5, metavar="N",
           help="hypotheses of the beam search (default: 5); 1 is greedy")
    option("--nbest", "--n-best", dest="n_best", type=int, default=1, metavar="N",
           help="show the N likeliest translations of each text (default: 1)")
    option("--format", default="text",
           help="text, or moses: 'number ||| translation ||| features ||| score' (default: text)")
    option("--plot", metavar="PNG",
           help="draw the attention of the best translation: for one text, into a file ending in "
           ".png; else into a new folder, with a picture for each line that is not empty")
    option("--length-normalization", type=float, default=1.0, metavar="A",
           help="rank translations by log-probability / length ** A (default: 1)")
    option("--max-tokens", type=int, metavar="N",
           help="most tokens of a translation (default: twice those of its text, plus 10)")
    option("--allow-unknown", action="store_true", help="also take <unk>, like any other token")

    option = add("rescore", rescore,
                 "Score the hypotheses of n-best lists with RUNs, and choose the best.")
    option("run_folders", type=run_path, metavar="RUN", nargs="+",
           help="RUN folders or .keras files: language models, or with --input models that "
           "translate")
    option("nbest", metavar="NBEST", help="file of n-best lists")
    option("--format", default="moses",
           help="moses ('id ||| words ||| features ||| score'), kaldi ('utterance-n words'), jsonl "
           "(objects with id and text) or trees (in brackets, a blank line between sentences) "
           "(default: moses)")
    option("--scores", nargs="+", action="extend", default=[], metavar="FILE",
           help="scores of Kaldi lists, 'utterance-n number': a feature for each FILE")
    option("--input", metavar="SOURCE", help="the source texts, a line for each list")
    option("--feature-weights", metavar="FILE",
           help="weights of the features, as --save-weights writes them (default: 1 for each RUN, "
           "0 for other features)")
    option = group("state and learning")
    option("--carry", action="store_true",
           help="read each list in the state that the best hypothesis of the list before left")
    option("--adapt", action="store_true",
           help="learn from the best hypothesis of a list before scoring the next list")
    option("--rule",
           help="update rule of --adapt: nadam, sgd or rms (default: nadam, or that of the first "
           "RUN if it is shipped)")
    add_set(option, "override settings of --adapt, e.g. learning_rate=0.001")
    option = group("output and weights")
    option("--best", action="store_true", help="write only the best hypothesis of each list")
    option("--output", metavar="FILE", help="file to write (default: standard output)")
    option("--tune", metavar="REFERENCES",
           help="learn the weights that are best for these references (a line for each list)")
    option("--compare", metavar="REFERENCES",
           help="show what the weights are worth, measured on these references")
    option("--metric", help="metric of --tune and --compare: bleu, wer or f1 (default: f1 for "
           "trees, else bleu)")
    option("--save-weights", metavar="FILE", help="write the weights of --tune, as TOML")
    option("--seed", type=int, metavar="N", help="random seed of --tune and of the intervals")

    option = add("export", commands.export, "Export the model of a RUN for use without dualnet.")
    option("run_folder", type=run_path, metavar="RUN", help=RUN_OR_KERAS)
    option("path", metavar="PATH", help=f"{OUTPUT}, or file ending in .onnx or .tflite")
    option("--format",
           help="saved_model (a TensorFlow SavedModel), onnx, litert or sherpa-onnx (default: onnx "
                "if PATH ends in .onnx, litert if in .tflite, else saved_model)")
    option("--tokens", metavar="FILE", help="tokens.txt of the recogniser, for sherpa-onnx")
    option("--max-tokens", type=int, default=1000, metavar="N",
           help="most tokens that a request to generate_text or translate may ask for "
                "(default: 1000)")

    option = add("jobs", tuning.jobs, "List the published searches, or show one.")
    option("name", metavar="JOB", nargs="?", help="name of a job, or the path of your own (.toml)")

    option = add("tune", tuning.tune, "Search for good settings with KerasTuner.")
    option("job", metavar="JOB",
           help="name of a job (see 'dualnet jobs'), or the path of your own (.toml)")
    option("--corpus", help=f"{CORPUS} (default for a job over a RUN: its corpus)")
    add_reading(option)
    option("--run", dest="run_folder", type=run_path, metavar="RUN",
           help="RUN folder for a job that tunes a gate or an evaluation")
    option("--output", required=True, metavar="DIR", help=OUTPUT)
    option = group("limits")
    option("--max-trials", type=int, metavar="N", help="number of trials (default: as in the job)")
    option("--max-hours", type=float, metavar="H",
           help="stop after H hours; --resume continues the search")
    option("--max-hours-per-trial", type=float, metavar="H",
           help="stop a trial after H hours and keep its result so far")
    option("--workers", type=int, default=1, metavar="N", help="parallel trials (default: 1)")
    option = group("search")
    option("--tuner", help="random, bayesian, hyperband or grid (default: as in the job)")
    add_set(option, "fix settings instead of searching them; parameters=24M sets a size budget")
    option("--seed", type=int, metavar="N", help="random seed of the search and its trials")
    option("--resume", action="store_true", help="continue the search in DIR")
    add_checkpoint_steps(option)
    option("--quiet", action="store_true", help="do not show the table of trials")

    _add_analyses(subparsers)

    option = add("demo", commands.demo, "Train, adapt, compare and serve two small models.")
    option("--output", default="demo", metavar="FOLDER", help="folder to write (default: demo)")
    texts = {name: str(each.description) for name, each in subparsers.choices.items()}
    parser.epilog = grouped(texts)
    return parser


def _models(prefix: str, **_: Any) -> list[str]:
    """Return the names that the shell may complete `prefix` to."""
    names = [*zoo.list_models(), *zoo.list_models(pretrained=True)]
    return [name for name in names if name.startswith(prefix)]


def _add_tokenizer(subparsers: Any) -> None:
    text = "Train a tokeniser, or show how one reads a text."
    command = subparsers.add_parser("tokenizer", help=text, description=text)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Callable[..., Any]:
        return add_command(actions, name, run, text, of="tokenizer").add_argument

    option = add("train", tokenizing.train, "Learn the units of a tokeniser from the train split.")
    option("name", metavar="CORPUS", help=CORPUS)
    option("--kind", default="bpe",
           help="bpe (of bytes: no text is unknown), unigram, word-piece or characters "
           "(default: bpe)")
    option("--size", type=int, metavar="N", help="number of units; not for characters")
    option("--output", required=True, metavar="FILE", help="new file to write, ending in .json")
    option("--special", nargs="+", action="extend", default=[], metavar="STRING",
           help="strings that are one unit each wherever they occur, e.g. '<unk>'")
    option("--lowercase", action="store_true", help="convert all text to lower case first")
    add_fractions(option)

    option = add("show", tokenizing.show, "Show a tokeniser, and the units of texts.")
    option("tokenizer", type=run_path, metavar="TOKENIZER", help=f"{RUN}, or a tokenizer.json")
    option("--text", action="append", dest="texts", default=[], metavar="TEXT",
           help="text to encode; repeatable")


def _add_analyses(subparsers: Any) -> None:
    text = "Analyse RUNs: gates, experts, rank or learning curves."
    analyse = subparsers.add_parser("analyse", help=text, description=text)
    analyses = analyse.add_subparsers(dest="analysis", required=True, metavar="ANALYSIS")
    for name, (function, text) in analysing.ANALYSES.items():
        command = add_command(analyses, name, analysing.analyse, text, of="analyse")
        command.set_defaults(analysis_of=function)
        option = command.add_argument
        option("run_folders", type=run_path, metavar="RUN",
               help=RUN if name == "curves" else RUN_OR_KERAS,
               nargs="+" if name in ("rank", "curves") else 1)
        option("--output", metavar="PNG", help="plot the result into this file")
        if name == "curves":
            continue
        option("--corpus", help=f"{CORPUS} (default: the corpus that RUN was trained on)")
        default = "train" if name == "gates" else "test"
        option("--split", default=default, help=f"train, valid or test (default: {default})")
        if name == "gates":
            option("--words", nargs="+", required=True, metavar="WORD", help="the preceding words")
            option("--count", type=int, default=5, metavar="N",
                   help="favoured words to show after each (default: 5)")
            option("--least-occurrences", type=int, default=100, metavar="N",
                   help="leave out words that are rarer in the split (default: 100)")
        elif name == "rank":
            option("--rows", type=int, metavar="N", help="use the first N contexts (default: all)")
            option("--tolerance", type=float, metavar="X",
                   help="count singular values up to X as zero (default: by float32 rounding)")


# fmt: on
