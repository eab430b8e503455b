"""The commands `generate`, `export` and `demo`."""

import contextlib
import itertools
import os
import secrets
import sys

from dualnet._checks import ArgumentError
from dualnet._fields import field
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, printable, quietly
from dualnet.cli.options import OfRun, OfTexts, open_language_model
from dualnet.requests import Beaming, Drawing, Exporting
from dualnet.runs import Run

# What the JSON of `generate` holds of its settings.
DRAWN = [name for name in Drawing.names() if name not in Beaming.names()]
SEARCHED = ("max_tokens", "allow_unknown", *Beaming.names())


class Generate(OfTexts, Drawing):
    """Options of `generate`."""

    texts: list[str] | None = field(None, flags=["--prompt"], action="append", metavar="TEXT")
    """Prompt to continue; repeatable."""

    temperature: float | None = field(None, metavar="T")  # type: ignore[assignment]
    """Divide the logits by it: low values give likelier text (default: 1)."""

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
    if options.temperature is None:
        settings["temperature"] = 0.0 if options.greedy else 1.0
    if options.seed is None and options.beam is None:
        settings["seed"] = secrets.randbits(32)
    prompts = options.lines()
    if options.texts is None:
        prompts = [line.removesuffix("\n") for line in prompts]
    if options.stream and len(prompts) > 1:
        raise ArgumentError("--stream", f"takes one prompt. Received: {len(prompts)} of them.")
    run = open_language_model(options.run_folder)
    generation, model = quietly("dualnet.generation"), run.model()
    is_watched = sys.stdout.isatty() and len(prompts) == 1 and not options.json
    if options.stream or (is_watched and options.beam is None):
        generation.generate(model, prompts[0], on_text=_show, **settings)
        print()
        return None
    texts = generation.generate(model, prompts, **settings)
    used = {name: settings[name] for name in (DRAWN if options.beam is None else SEARCHED)}
    shown = texts if options.n_best is None else itertools.chain(*texts)
    return Result({"texts": texts, "prompts": prompts, **used}, "\n\n".join(shown))


def _show(piece: str) -> None:
    print(printable(piece), end="", flush=True)


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
        received = f"Received: {options.path!r}, which holds files. Choose another."
        raise ArgumentError("path", f"must be new or empty. {received}")
    serving = quietly("dualnet.serving")
    model = run.model()
    format = options.format or serving.format_of(options.path)
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
