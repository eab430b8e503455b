"""The command `translate`."""

from pathlib import Path
from typing import TYPE_CHECKING

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet._files import check_output_file, is_used, make_folder, write_whole
from dualnet.cli.console import Result, json_of, printable, quietly
from dualnet.cli.options import OfTexts, check_file
from dualnet.requests import Translating
from dualnet.runs import Run

if TYPE_CHECKING:
    from dualnet.builders import TranslationModel
    from dualnet.generation.translation import Translation

FORMATS = ("text", "moses")
LINES = 256  # that are translated and shown together


class Translate(OfTexts, Translating):
    """Options of `translate`."""

    output: str | None = field(None, check_file, metavar="FILE")
    """Write to FILE, whole or not at all, instead of standard output."""

    ensemble: list[str] = field([], metavar="RUN")
    """Further RUNs, with which to average the probabilities."""

    format: str = choice("text", FORMATS)
    """text, or moses: 'number ||| translation ||| features ||| score'."""

    plot: str | None = field(None, metavar="PNG")
    """Draw the attention of the best translation: for one text, into a file ending in .png; else
    into a new folder, with a picture for each line that is not empty."""

    excludes = {"ensemble": ["plot"]}


def translate(options: Translate) -> Result | None:
    """Translate texts, line by line.

    Examples:
        dualnet translate runs/de-en german.txt --beam 5 --output english.txt
    """
    texts = [line.removesuffix("\n") for line in options.lines(may_be_empty=True)]
    runs = [Run.open(folder) for folder in (options.run_folder, *options.ensemble)]
    for run in runs:
        if run.is_folder and not run.translates:
            received = f"Received: {str(run.path)!r}, of a language model. Use `dualnet generate`."
            raise ArgumentError("RUN", f"must be of a model that translates. {received}")
    if options.plot is not None:
        _check_plot(Path(options.plot), texts)
    generation = quietly("dualnet.generation")
    from dualnet.evaluation.arguments import check_translators

    models = [run.model() for run in runs]
    check_translators(models)  # also those of .keras files
    settings = Translating.fields_of(options.arguments())
    if not (options.json or options.output or options.plot):  # text is shown as it is found
        for first in range(0, len(texts), LINES):
            found = generation.translations(models, texts[first : first + LINES], **settings)
            print(_text(options, found, first), flush=True)
        return None
    found = generation.translations(models, texts, **settings)
    if options.plot is not None:
        _plot(Path(options.plot), models[0], texts, [best for best, *_ in found])
    fields = ("text", "score", "normalized_score")
    rows = [
        {"text": text, "translations": [{f: getattr(one, f) for f in fields} for one in best]}
        for text, best in zip(texts, found)
    ]
    used = options.given(["beam", "length_normalization"])
    result = Result({"texts": rows, **used}, _text(options, found))
    if options.output is None:
        return result
    write_whole(options.output, (json_of(result.to_dict()) if options.json else str(result)) + "\n")
    return None


def _text(options: Translate, translated: "list[list[Translation]]", first: int = 0) -> str:
    """Return the translations as text or as an n-best list of Moses, numbered from `first`."""
    lines = []
    for number, best in enumerate(translated, first):
        for one in best:
            line = " ".join(one.text.splitlines())  # one line for each, always
            if options.format == "moses":
                line = line.replace("|||", "&#124;" * 3)  # which separates the fields
                scores = f"dualnet= {one.score:.6f} ||| {one.normalized_score:.6f}"
                line = f"{number} ||| {line} ||| {scores}"
            lines.append(printable(line))
    return "\n".join(lines)


def _check_plot(path: Path, texts: list[str]) -> None:
    if path.suffix.lower() == ".png":
        if len(texts) != 1 or not texts[0]:
            required = "in a .png is of one text that is not empty; give a new folder for others."
            raise ArgumentError("--plot", f"{required} Received: {len(texts)} texts.")
        check_output_file("--plot", path)
    elif path.exists() and (not path.is_dir() or is_used(path)):
        required = "must be a file that ends in .png, or a new or empty folder."
        raise ArgumentError("--plot", f"{required} Received: {str(path)!r}, which exists.")


def _plot(
    path: Path, model: "TranslationModel", texts: list[str], translated: "list[Translation]"
) -> None:
    """Draw the attention of each translation into the file or the folder of `--plot`."""
    from dualnet.generation import alignments

    is_file = path.suffix.lower() == ".png"
    if not is_file:
        make_folder("--plot", path)
    for number, alignment in enumerate(alignments(model, texts, translated), start=1):
        if alignment.source:
            alignment.plot(path if is_file else path / f"{number}.png")
