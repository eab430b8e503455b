"""The page: the text, coloured by surprisal, and what the models predicted at each word."""

import dataclasses
import html
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from dualnet._checks import ArgumentError, StrPath, finite
from dualnet._fields import documented
from dualnet._files import check_output_file, write_whole
from dualnet.adaptation import GradientStatistics
from dualnet.builders import LanguageModel
from dualnet.evaluation.arguments import vocabulary_with_eos
from dualnet.evaluation.words import words_of
from dualnet.looking.reading import Reading, read
from dualnet.requests import DynamicEvaluating, Looking, LookingArguments
from dualnet.runs import Run
from dualnet.runs.shipped import shipped_of_english
from dualnet.text import UNK, Tokenizer
from dualnet.text.plain_text import check_text

MOST_TOKENS = 20_000  # of a page, which a browser shows without delay
Data = dict[str, Any]  # what `page.js` reads, JSON-serialisable
HEIGHT = 760  # of a page in a notebook, in pixels


@dataclasses.dataclass(frozen=True)
class Page:
    """The result of `dualnet.look`: one HTML page, which needs no network and no server.

    A notebook shows it in place.

    Attributes:
        html: str. The page.
        perplexities: A dict for each model: its `name`, its perplexity on the text with
            `fixed` weights and, with `adapt`, with `learning` ones.
        units: int. Number of tokens, all of which are predicted.
        segment: int or None. With `adapt`, the tokens that are scored before each step.

    Example:

    >>> import dualnet
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> dualnet.look(model, "the cat").save("page.html")
    >>> import os
    >>> os.remove("page.html")
    """

    html: str = dataclasses.field(repr=False)
    perplexities: list[dict[str, object]]
    units: int
    segment: int | None = None

    def save(self, path: StrPath) -> None:
        """Write the page to the file `path`; all or nothing."""
        check_output_file("path", path)
        write_whole(path, self.html)

    def _repr_html_(self) -> str:
        style = f'style="width: 100%; height: {HEIGHT}px; border: 0"'
        source = html.escape(self.html)
        return f'<iframe srcdoc="{source}" title="Models reading a text" {style}></iframe>'


Model = LanguageModel | StrPath
Models = Model | Sequence[Model] | Mapping[str, Model] | None


@documented(Looking)
def look(
    models: Models = None,
    text: str | None = None,
    *,
    statistics: GradientStatistics | None = None,
    **settings: Unpack[LookingArguments],
) -> Page:
    """Return a page that shows models reading `text`.

    Each token, or each word, whose surprisal is the sum of its tokens, is coloured by its
    surprisal; by what it gains over another model, or over fixed weights; or by the inside of a
    model: the mean of each gate, and what the word before and the past add to the logit. The page
    also shows the likeliest tokens at each place and the running perplexity; of a gate that reads
    the current word the words with the largest values, of a mixture the share of each expert.

    The text is one stream, read from the zero state after `<eos>`, as by `dualnet.surprisal`.

    Args:
        models: `LanguageModel` with a vocabulary that has `<eos>`; the path of a RUN folder or a
            `.keras` file; a list of these; or a dict of names to these. Several must have one
            tokeniser. None for the shipped models of English.
        text: str. Required.
        {arguments}
        statistics: As for `dualnet.dynamic_evaluation`; only with `adapt`.

    Returns:
        `Page`, which a notebook shows, and which has `save(path)`.

    Example:

    >>> import dualnet
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("dual_lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> page = dualnet.look({"dual": model}, "the cat", adapt=True)
    >>> page.units, list(page.perplexities[0])
    (2, ['name', 'fixed', 'learning'])
    """
    if text is None:
        raise ArgumentError(
            "text", "must be given: look(models, text), or look(text=...) for the English ones."
        )
    request = Looking.of(settings)
    request.check_adapts(statistics=statistics)
    if not check_text("text", text).strip():
        raise ArgumentError("text", f"must hold at least one word. Received: {text[:20]!r}.")
    runs = {  # opened before the first model is loaded
        name: Run.open(model) if isinstance(model, str | os.PathLike) else model
        for name, model in _named(models).items()
    }
    loaded = {name: run.model() if isinstance(run, Run) else run for name, run in runs.items()}
    tokenizer = _shared_tokenizer(loaded)
    ids, offsets = tokenizer.encode_with_offsets(text)
    _check_units(ids, tokenizer)
    stream = np.append(np.int32(tokenizer.require_eos()), ids)
    temperature = request.temperature
    readings = {name: [read(model, stream, temperature)] for name, model in loaded.items()}
    if request.adapt:
        asked = DynamicEvaluating.fields_of(request.arguments())
        dynamic = DynamicEvaluating(**{**asked, "adapt": request.adapt_weights})
        for name, model in loaded.items():
            readings[name].append(read(model, stream, temperature, dynamic, statistics))
    perplexities = [
        {"name": name, **dict(zip(KINDS, [reading.perplexity for reading in of]))}
        for name, of in readings.items()
    ]
    segment = next(iter(readings.values()))[-1].segment
    data = _data(text, tokenizer, ids, offsets, readings)
    return Page(_rendered(data), perplexities, len(ids), segment)


KINDS = ("fixed", "learning")
NAMED = ("likeliest", "favoured")  # columns of ids
DIGITS = {"bits": 5, "probabilities": 6, "gates": 4, "shares": 4}


def _named(models: Models) -> dict[str, Model]:
    """Return the models and paths of models by names that differ."""
    if models is None:
        models = shipped_of_english()
    if isinstance(models, Mapping):
        return {str(name): model for name, model in models.items()}
    if isinstance(models, LanguageModel | str | os.PathLike):
        models = [models]
    if not models:
        raise ArgumentError(
            "models",
            "must be a model, the path of a RUN, a list of them, or a dict of names to them.",
            models=models,
        )
    named = {}
    short = [_name(model) for model in models]
    for model, base in zip(models, short):
        if isinstance(model, str | os.PathLike) and short.count(base) > 1:
            base = os.fspath(model)
        name, number = base, 1
        while name in named:
            number += 1
            name = f"{base} ({number})"
        named[name] = model
    return named


def _name(model: Model) -> str:
    if isinstance(model, str | os.PathLike):
        return Path(os.path.abspath(model)).name.removesuffix(".keras")
    return str(getattr(model, "name", model))  # or what is none, which is refused later


def _shared_tokenizer(models: Mapping[str, LanguageModel]) -> Tokenizer:
    """Return the tokeniser of the models; raise `ValueError` if they have several."""
    tokenizers = {name: vocabulary_with_eos(model)[0] for name, model in models.items()}
    (first, tokenizer), *others = tokenizers.items()
    for name, other in others:
        if other != tokenizer:
            raise ArgumentError(
                "models",
                "must have one tokeniser, so that they predict the same tokens. Received: "
                f"{first!r} with {tokenizer!r}, {name!r} with {other!r}.",
                " Make a page for each, or train them on one corpus.",
            )
    return tokenizer


def _check_units(ids: np.ndarray, tokenizer: Tokenizer) -> None:
    if len(ids) > MOST_TOKENS:
        raise ArgumentError(
            "text",
            f"must have at most {MOST_TOKENS:,} tokens. Received: {len(ids):,}. Show a part of it.",
        )
    words = ids[ids != tokenizer.eos_id]
    unknown = -1 if tokenizer.unk_id is None else tokenizer.unk_id
    if (words == unknown).all():
        received = f"words that are all read as {UNK}" if len(words) else "none"
        message = f"must hold a word that the models know. Received: {received}."
        raise ArgumentError("text", f"{message} Choose a text like those of their corpus.")


def _data(
    text: str,
    tokenizer: Tokenizer,
    ids: np.ndarray,
    offsets: np.ndarray,
    readings: Mapping[str, Sequence[Reading]],
) -> Data:
    """Return the data of the page, JSON-serialisable.

    The names of tokens stand once, in `names`; all else refers to them by id.
    """
    eos_id = tokenizer.require_eos()
    used = {eos_id, *ids.tolist()}
    records = []
    for number, of in enumerate(readings.values()):
        for kind, reading in zip(KINDS, of):
            columns = {
                name: [finite(round(x, DIGITS.get(name, 0))) for x in column.ravel().tolist()]
                for name, column in reading.columns.items()
            }
            about = {"model": number, "kind": kind, "segment": reading.segment}
            about["inside"] = {n: column.round(3).tolist() for n, column in reading.inside.items()}
            records.append({**about, "perplexity": finite(reading.perplexity), **columns})
            used.update(*(columns.get(name, ()) for name in NAMED))
    pieces, gaps, end = [], [], 0
    for start, stop in offsets.tolist():
        start = max(start, end)
        gaps.append(text[end:start])
        pieces.append(text[start:stop])
        end = max(end, stop)
    return {
        "names": {i: tokenizer.words[i] for i in sorted(used)},
        "ids": ids.tolist(),
        "eos": eos_id,  # before the first token, too
        "unknown": tokenizer.unk_id,
        "pieces": pieces,
        "before": gaps,
        "after": text[end:],
        "models": list(readings),
        "levels": {name: starts.tolist() for name, starts in _levels(text, tokenizer, ids).items()},
        "readings": records,
    }


def _levels(text: str, tokenizer: Tokenizer, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tokens at which what the page colours begins, the finest level first.

    Tokens that spell one character together are coloured as one; so are, if they are fewer, the
    words.
    """
    _, units = tokenizer.whole_units(ids)
    words = words_of(tokenizer, text).starts
    if tokenizer.kind == "words":
        return {"word": units}
    return {"token": units} | ({"word": words} if len(words) < len(units) else {})


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{len(names)} models"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _rendered(data: Data) -> str:
    import jinja2
    from markupsafe import Markup

    def asset(name: str) -> str:
        return (resources.files("dualnet.looking") / name).read_text("utf-8")

    environment = jinja2.Environment(
        autoescape=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    # `tojson` escapes <, > and &, so that no text can end the script that it stands in.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.from_string(asset("page.html")).render(
        data=data,
        title=f"How {_listed(data['models'])} read{'s' * (len(data['models']) == 1)} this text",
        style=Markup(asset("page.css")),
        script=Markup(asset("page.js")),
    )
