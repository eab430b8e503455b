"""The commands that use models: `look`, `generate`, `translate`, `export` and `demo`."""

import contextlib
import itertools
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet._files import check_output_file, read_json, write_whole
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table, json_of, number, printable, quietly
from dualnet.cli.options import (
    OfRun,
    OfRuns,
    OfTexts,
    Setting,
    Texts,
    open_language_model,
)
from dualnet.requests import (
    Beaming,
    Completing,
    Drawing,
    Exporting,
    Looking,
    Translating,
    format_of,
)
from dualnet.runs import Run
from dualnet.runs.shipped import LICENCES, licences_of, list_shipped, shipped_of_english

if TYPE_CHECKING:
    from dualnet.generation.translation import Translation


class Look(Texts, OfRuns, Setting, Looking):
    """Options of `look`."""

    run_folders: list[str] = argument([], nargs="*", metavar="RUN")
    """RUN folders of trained models, or names of shipped ones, or .keras files (default: the two of
    English); the last one may be a file with the text, '-' for standard input."""

    output: str = field(check=check_output_file, metavar="HTML")
    """Page to write."""

    def __post_init__(self) -> None:
        """Take the last RUN as FILE if it is not a RUN and there is no text."""
        *others, last = self.run_folders or [""]
        is_run = os.path.isdir(last) or last.endswith(".keras") or last in list_shipped()
        may_be_file = bool(others) or last == "-" or os.path.isfile(last)
        if self.texts is None and last and may_be_file and not is_run:
            object.__setattr__(self, "run_folders", others)
            object.__setattr__(self, "file", last)
        super().__post_init__()


def look(options: Look) -> Result:
    """Write a page that shows models reading a text, word by word.

    Examples:
        dualnet look --text "The ship was built in 1904." --output page.html
        dualnet look runs/lstm runs/dual article.txt --adapt --output page.html
    """
    runs = [open_language_model(run) for run in options.run_folders or shipped_of_english()]
    for path in (*(run.path for run in runs), options.file):
        if path and os.path.realpath(path) == os.path.realpath(options.output):
            raise ArgumentError(
                "--output", f"must not be a file that is read. Received: {options.output!r}."
            )
    separator = "\n" if options.texts or options.column else ""
    text = separator.join(line.text for line in options.records().read())
    looking = quietly("dualnet.looking")
    settings = Looking.fields_of(options.changed())
    page = looking.look([str(run.path) for run in runs], text, **settings)
    page.save(options.output)
    if page.segment is not None and page.units <= page.segment:
        note = f"The text has {page.units} tokens, and the first step comes after {page.segment}: "
        print(f"{note}nothing is learnt. Try --set sequence_length=5.", file=sys.stderr)
    head = ["fixed weights", *["learning"] * options.adapt, "model"]
    rows = [[*map(number, figures), name] for name, *figures in map(dict.values, page.perplexities)]
    tokens = f"{page.units:,} token{'s' * (page.units != 1)}"
    return Result(
        {"output": options.output, "tokens": page.units, "models": page.perplexities},
        Table(head, rows),
        f"\nperplexity on {tokens}; the page is {options.output}",
    )


# What the JSON of `generate` holds of its settings.
DRAWN = [name for name in Drawing.names() if name not in Beaming.names()]
SEARCHED = ("max_tokens", "allow_unknown", *Beaming.names())


class Generate(OfTexts, Drawing):
    """Options of `generate`."""

    texts: list[str] | None = field(None, flags=["--prompt"], action="append", metavar="TEXT")
    """Prompt to continue; repeatable."""

    greedy: bool = False
    """Always take the likeliest token."""

    stream: bool = False
    """Show the text of one prompt as it is drawn, as is done on a terminal."""

    excludes = {"greedy": ["temperature", "beam"], "stream": ["beam", "json"]}


def generate(options: Generate) -> Result | None:
    """Continue prompts with generated text.

    Examples:
        dualnet generate runs/dual --prompt "The cat" --temperature 0.8 --seed 1
    """
    settings = Drawing.fields_of(options.arguments())
    if options.greedy:
        settings["temperature"] = 0.0
    if options.seed is None and options.beam is None:
        settings["seed"] = secrets.randbits(32)
    prompts = options.lines()
    if options.stream and len(prompts) > 1:
        raise ArgumentError("--stream", f"takes one prompt. Received: {len(prompts)} of them.")
    run = open_language_model(options.run_folder)
    generation, model = quietly("dualnet.generation"), run.model()
    is_watched = sys.stdout.isatty() and len(prompts) == 1 and not options.json
    if options.stream or (is_watched and options.beam is None):
        generation.generate(model, prompts[0], on_text=_show, **settings)
        print()
        return None
    from rich.console import Console

    with Console(stderr=True).status(f"up to {options.max_tokens:,} tokens"):  # on a terminal
        texts = generation.generate(model, prompts, **settings)
    used = {name: settings[name] for name in (DRAWN if options.beam is None else SEARCHED)}
    shown = texts if options.n_best is None else itertools.chain(*texts)
    return Result({"texts": texts, "prompts": prompts, **used}, "\n\n".join(shown))


def _show(piece: str) -> None:
    print(printable(piece), end="", flush=True)


class Complete(OfTexts, Completing):
    """Options of `complete`."""


def complete(options: Complete) -> Result:
    """Offer the likeliest words at the end of texts: what has begun, or comes next.

    Examples:
        dualnet complete runs/dual --text "The sh" --text "She said that " --k 5
    """
    texts = options.lines()
    run = open_language_model(options.run_folder)
    generation = quietly("dualnet.generation")
    completer = generation.Completer(run.model(), **Completing.fields_of(options.arguments()))
    rows, shown = [], []
    for text in texts:
        words = completer(text)
        rows.append({"text": text, "words": [word._asdict() for word in words]})
        shown.append("\n".join(f"{probability:.4f}  {word}" for word, probability in words))
    return Result({"texts": rows}, "\n\n".join(shown))


class Export(OfRun, Exporting):
    """Options of `export`."""

    path: str = argument(metavar="PATH")
    """Folder to write, new or empty, or file ending in .onnx or .tflite."""


def export(options: Export) -> Result:
    """Export the model of a RUN for use without dualnet.

    Examples:
        dualnet export runs/dual models/dual/1
        dualnet export runs/dual dual.onnx
        dualnet export runs/dual models/dual/2 --learn connection
        dualnet export runs/dual models/dual-hf --format transformers
    """
    run = Run.open(options.run_folder)
    if os.path.isdir(options.path) and os.listdir(options.path):  # before the model is loaded
        raise ArgumentError(
            "path",
            f"must be new or empty. Received: {options.path!r}, which holds files. Choose another.",
        )
    format = options.format or format_of(options.path)
    serving = quietly("dualnet.serving")
    model = run.model()
    path = serving.export(model, options.path, **Exporting.fields_of(options.arguments()))
    endpoints = serving.endpoints(model, format=format, learn=options.learn)
    result = {"path": str(path), "format": format, "endpoints": endpoints}
    lines = [f"A single step of the model in {path}"]
    if format == "transformers":
        lines = [f"A model for Hugging Face transformers in {path}"]
    if format == "saved_model":
        lines = [f"SavedModel with the endpoints {', '.join(endpoints)} in {path}"]
        if reason := serving.why_no_text(model):
            lines.append(f"No text endpoints: {reason}")
    measured = Path(f"{path}.{serving.exporting.CHECK}")
    if measured.is_file():
        figures = result["check"] = read_json(measured)
        lines.append(
            f"Perplexity of the file {figures['perplexity']:.2f}, of the model "
            f"{figures['of_model']:.2f}, on {figures['tokens']:,} tokens."
        )
    if licences_of(run):
        lines.append(f"The terms of the weights, in {LICENCES} with it, apply to it, too.")
    if options.tokens:
        shared = serving.token_map(options.tokens, model.vocabulary)
        result |= {"unknown_tokens": shared.unknown, "unused_units": shared.unused}
        lines.append(shared.summary())
    return Result(result, *lines)


class Demo(Options):
    """Options of `demo`."""

    output: str = field("demo", metavar="FOLDER")
    """Folder to write."""


def demo(options: Demo) -> Result:
    """Train, adapt, compare and serve two small models.

    Examples:
        dualnet demo --output demo
    """
    demo = quietly("dualnet.demo", seeds=True)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        return Result(demo.run(options.output))


FORMATS = ("text", "moses")
LINES = 256  # that are translated and shown together


class Translate(OfTexts, Translating):
    """Options of `translate`."""

    output: str | None = field(None, check_output_file, metavar="FILE")
    """Write to FILE, whole or not at all, instead of standard output."""

    ensemble: list[str] = field([], metavar="RUN")
    """Further RUNs, with which to average the probabilities."""

    format: str = choice("text", FORMATS)
    """text, or moses: 'number ||| translation ||| features ||| score'."""

    plot: str | None = field(None, check_output_file, metavar="PNG")
    """Draw the attention of the best translation of one text."""

    excludes = {"ensemble": ["plot"]}


def translate(options: Translate) -> Result | None:
    """Translate texts, line by line.

    Examples:
        dualnet translate runs/de-en german.txt --beam 5 --output english.txt
    """
    texts = options.lines(may_be_empty=True)
    runs = [*map(Run.open, (options.run_folder, *options.ensemble))]
    if options.plot is not None and (len(texts) != 1 or not texts[0]):
        raise ArgumentError(
            "--plot",
            f"takes one text that is not empty. Received: {len(texts)} of them.",
            " For more, see `alignments` in Python.",
        )
    generation = quietly("dualnet.generation")
    models = [run.model() for run in runs]
    settings = Translating.fields_of(options.arguments())
    if not (options.json or options.output or options.plot):  # text is shown as it is found
        for first in range(0, len(texts), LINES):
            translated = generation.translations(models, texts[first : first + LINES], **settings)
            print(_text(options, translated, first), flush=True)
        return None
    translated = generation.translations(models, texts, **settings)
    if options.plot is not None:
        [alignment] = generation.alignments(models[0], texts, [translated[0][0]])
        alignment.plot(options.plot)
    fields = ("text", "score", "normalized_score")
    rows = [
        {"text": text, "translations": [{f: getattr(one, f) for f in fields} for one in best]}
        for text, best in zip(texts, translated)
    ]
    used = options.given(["beam", "length_normalization"])
    result = Result({"texts": rows, **used}, _text(options, translated))
    if options.output is None:
        return result
    write_whole(options.output, (json_of(result.values) if options.json else str(result)) + "\n")
    return None


def _text(options: Translate, translated: "list[list[Translation]]", first: int = 0) -> str:
    """Return the translations as text or as an n-best list of Moses, numbered from `first`."""
    lines = []
    for index, best in enumerate(translated, first):
        for one in best:
            line = " ".join(one.text.splitlines())  # one line for each, always
            if options.format == "moses":
                line = line.replace("|||", "&#124;" * 3)  # which separates the fields
                scores = f"dualnet= {one.score:.6f} ||| {one.normalized_score:.6f}"
                line = f"{index} ||| {line} ||| {scores}"
            lines.append(printable(line))
    return "\n".join(lines)
