"""The commands that have no module of their own: call the library and print the result."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._fields import field
from dualnet.cli.command import Options, argument
from dualnet.cli.console import printable, quietly, texts_of
from dualnet.cli.options import OfRun, OfTexts, Reading, ReadingPairs, open_language_model
from dualnet.cli.pair_corpora import check_no_pairs, show_pairs
from dualnet.requests import Beaming, Drawing, Exporting
from dualnet.runs import Run


class Data(ReadingPairs, Reading):
    """Options of `data`.

    Args:
        name: ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt
            and test.txt, or a text file.
        path: Folder with the files of a named corpus.
        lowercase: Convert the text to lower case.
    """

    name: str | None = argument(None, nargs="?", metavar="CORPUS")
    path: str | None = field(None, metavar="FOLDER")
    lowercase: bool = False


def data(options: Data) -> None:
    """Show a corpus: counts of tokens and words, first words.

    Examples:
        dualnet data book.txt --tokenizer bpe:2000
    """
    from dualnet import corpora

    if options.pairs is not None:
        show_pairs(options)
        return
    check_no_pairs(options)
    if options.name is None:
        raise ArgumentError("CORPUS", "must be given, or --pairs FOLDER. Received: neither.")

    settings = {"path": options.path, "lowercase": options.lowercase, **options.reading()}
    corpus = corpora.load(options.name, **settings)
    tokenizer = corpus.vocabulary
    reads_words = tokenizer.kind == "words"
    sizes = {} if reads_words else _bytes_per_token(corpus, options)
    if options.json:
        summary = {name: getattr(corpus, name) for name in ("name", "source", "lowercase")}
        summary |= {"tokenizer": corpus.tokenizer, "documents": tokenizer.documents}
        summary |= {"fractions": corpus.fractions} if corpus.fractions else {}
        summary["tokens"] = {split: len(corpus.split(split)) for split in corpora.SPLITS}
        summary["sentences"] = {split: _sentences(corpus, split) for split in corpora.SPLITS}
        summary |= {"bytes_per_token": sizes} if sizes else {}
        summary["vocabulary_size"] = len(tokenizer)
        summary["vocabulary_sha256"] = tokenizer.sha256
        summary["sha256"] = corpus.sha256
        print(json.dumps(summary))
        return
    print(f"{corpus.name} from {corpus.source}{', lower-cased' if corpus.lowercase else ''}")
    ended = "sentences" if tokenizer.documents == "line" else "documents"
    for split in corpora.SPLITS:
        ids = corpus.split(split)
        size = f"{sizes[split]:>6.2f} bytes per token" if sizes else ""
        print(f"{split:6}{len(ids):>12,} tokens {_sentences(corpus, split):>10,} {ended}{size}   "
              f"{tokenizer.decode(ids[: 10 if reads_words else 40])!r} ...")  # fmt: skip
    if reads_words:
        print(f"{'words':6}{len(tokenizer):>12,} in the vocabulary, including <eos>")
    else:
        print(f"{'units':6}{len(tokenizer):>12,} of {corpus.tokenizer}, including <eos>"
              + f"; {tokenizer.loses}" * bool(tokenizer.loses))  # fmt: skip


def _sentences(corpus: Any, split: str) -> int:
    """Return the number of documents of a split, each of which ends in `<eos>`."""
    return int(np.count_nonzero(corpus.split(split) == corpus.vocabulary.eos_id))


def _bytes_per_token(corpus: Any, options: Data) -> dict[str, float]:
    """Return the bytes of the text of each split, in UTF-8, over the number of its tokens."""
    from dualnet.corpora.corpus import SPLITS, locate
    from dualnet.text.plain_text import END, ENDS

    documents = corpus.vocabulary.documents
    assert options.name is not None
    text = locate(options.name, options.path, options.lowercase, True, documents, options.fractions)
    end = ENDS[documents]
    return {
        split: sum(len(block.replace(END, end).encode()) for block in text.read(split, False))
        / len(corpus.split(split))
        for split in SPLITS
    }


class Generate(OfTexts, Drawing):
    """Options of `generate`.

    Args:
        texts: Prompt to continue; repeatable.
        temperature: Divide the logits by it: low values give likelier text (default: 1).
        greedy: Always take the likeliest token.
    """

    texts: list[str] | None = field(None, flags=["--prompt"], action="append", metavar="TEXT")
    temperature: float | None = field(None, metavar="T")  # type: ignore[assignment]
    greedy: bool = False


# What the JSON of `generate` holds of its settings.
DRAWN = ("max_tokens", "temperature", "top_k", "top_p", "stop_at_eos", "allow_unknown", "seed")
SEARCHED = ("max_tokens", "allow_unknown", *Beaming.names())


def generate(options: Generate) -> None:
    """Continue prompts with generated text.

    Examples:
        dualnet generate runs/dual --prompt "The cat" --temperature 0.8 --seed 1
    """
    if options.greedy and options.temperature is not None:
        message = "means --temperature 0 and cannot be combined with --temperature."
        raise ArgumentError("--greedy", message)
    if options.greedy and options.beam is not None:
        raise ArgumentError("--greedy", "cannot be combined with --beam; --beam 1 is greedy.")
    settings = Drawing.fields_of(options.arguments())
    if options.temperature is None:
        settings["temperature"] = 0.0 if options.greedy else 1.0
    if options.seed is None and options.beam is None:
        settings["seed"] = secrets.randbits(32)
    prompts = texts_of("--prompt", options)
    if options.texts is None:
        prompts = [line.removesuffix("\n") for line in prompts]
    run = open_language_model(options.run_folder)
    generation = quietly("dualnet.generation")
    texts = generation.generate(run.model(), prompts, **settings)
    if options.json:
        used = DRAWN if options.beam is None else SEARCHED
        settings = {name: settings[name] for name in used}
        print(json.dumps({"texts": texts, "prompts": prompts, **settings}))
    else:
        several = texts if options.n_best is None else itertools.chain(*texts)
        print(printable("\n\n".join(several)))


class Export(OfRun, Exporting):
    """Options of `export`.

    Args:
        path: Folder to write, new or empty, or file ending in .onnx or .tflite.
    """

    path: str = argument(metavar="PATH")


def export(options: Export) -> None:
    """Export the model of a RUN for use without dualnet.

    Examples:
        dualnet export runs/dual models/dual/1
        dualnet export runs/dual dual.onnx
    """
    settings = {"max_tokens": options.max_tokens, "tokens": options.tokens}
    run = Run.open(options.run_folder)
    serving = quietly("dualnet.serving")
    model = run.model()
    format = options.format or serving.format_of(options.path)
    path = serving.export(model, options.path, format=format, **settings)
    endpoints = serving.endpoints(model, format=format)
    shared = serving.token_map(options.tokens, model.vocabulary) if options.tokens else None
    if options.json:
        result = {"path": str(path), "format": format, "endpoints": endpoints}
        if shared:
            result |= {"unknown_tokens": shared.unknown, "unused_units": shared.unused}
        print(json.dumps(result))
    elif format == "saved_model":
        print(f"SavedModel with the endpoints {', '.join(endpoints)} in {path}")
        if reason := serving.why_no_text(model):
            print(f"No text endpoints: {reason}")
    else:
        print(f"A single step of the model in {path}")
        if shared:
            print(printable(shared.summary()))


class Demo(Options):
    """Options of `demo`.

    Args:
        output: Folder to write.
    """

    output: str = field("demo", metavar="FOLDER")


def demo(options: Demo) -> None:
    """Train, adapt, compare and serve two small models.

    Examples:
        dualnet demo --output demo
    """
    demo = quietly("dualnet.demo", seeds=True)
    results = demo.run(options.output)
    if options.json:
        print(json.dumps(results))
