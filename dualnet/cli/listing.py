"""The commands `list` and `card`: what the zoo has."""

import dataclasses
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dualnet import zoo
from dualnet._checks import is_number
from dualnet._files import read_json
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table, number
from dualnet.cli.options import OfModel
from dualnet.runs import Run
from dualnet.runs.folder import RESULTS
from dualnet.runs.shipped import card_of_run, find_run

COLUMNS = ("static", "finetuned", "samples", "cache", "dynamic")  # published results


class List(Options):
    """Options of `list`."""

    pattern: str = argument("*", nargs="?", metavar="PATTERN")
    """List only names that match, e.g. "dual_*"."""

    pretrained: bool = False
    """List the trained models that are shipped, with their test results."""

    markdown: bool = False
    """Print a Markdown table with the results on all corpora."""

    excludes = {"json": ["markdown"], "pretrained": ["markdown"]}


def list_models(options: List) -> Result:
    """List the models of the zoo.

    Examples:
        dualnet list "dual_*"
    """
    names = zoo.list_models(options.pattern, pretrained=options.pretrained)
    if options.markdown:
        return Result(names, model_table(names))
    if not names:
        way_out = "`dualnet list` and `dualnet list --pretrained` show what there is."
        return Result(names, f"No model matches {options.pattern!r}. {way_out}")
    if options.pretrained:
        return Result(names, _pretrained_table(names), PRETRAINED_NOTE)
    return Result(names, _published_table(names), PUBLISHED_NOTE)


PUBLISHED_NOTE = """
Parameters and perplexities (validation/test) are for the first corpus. Where the paper reports
no static perplexity, the one after fine-tuning or over dropout samples is shown.
`dualnet list --pretrained` lists trained models."""
PRETRAINED_NOTE = """
Figures of the test text: perplexity per token and bits per byte, each static and with
dynamic evaluation. A name may stand wherever a command takes a RUN."""


def _published_table(names: list[str]) -> Table:
    rows = [
        [card.name, f"{card.parameters:,}",
         translation_results(card) or _pair(card, "static", "finetuned", "samples"),
         _pair(card, "dynamic"), ", ".join(card.corpora)]
        for card in map(zoo.card, names)
    ]  # fmt: skip
    return Table(["model", "parameters", "published", "dynamic", "corpora"], rows)


def _pretrained_table(names: list[str]) -> Table:
    rows = []
    for name in names:
        results = read_json(find_run(name) / RESULTS)
        figures = [results[protocol]["test"] for protocol in ("static", "dynamic")]
        rows.append([name, f"{results['parameters']:,}",
                     *(f"{figure['perplexity']:.2f}" for figure in figures),
                     *(f"{figure['bits_per_byte']:.3f}" for figure in figures)])  # fmt: skip
    head = ["model", "parameters", "perplexity", "dynamic", "bits per byte", "dynamic"]
    return Table(head, rows)


def _pair(card: zoo.Card, *keys: str) -> str:
    """Return the first published result among `keys`, or "-"."""
    pair = next((card.published[key] for key in keys if key in card.published), [math.nan] * 2)
    return "-" if all(map(math.isnan, pair)) else "/".join(map(number, pair))


class ShownCard(OfModel):
    """Options of `card`."""

    corpus: str | None = None
    """Published corpus to show the card for (default: the first one)."""


def card(options: ShownCard) -> Result:
    """Show the card of a model: paper, sizes, recipe, results.

    Examples:
        dualnet card dual_mdlstm --corpus wikitext-2
    """
    card = zoo.card(options.name, options.corpus)
    run = Run.open_folder(options.name) if card_of_run(options.name) else None
    lines = [*_about(options.name, card, run), *_settings(card)]
    return Result(dataclasses.asdict(card), *lines)


def _about(name: str, card: zoo.Card, run: Run | None) -> Iterator[str]:
    """Yield the lines about model `name`, that of `run` if it is one: paper, sizes and results."""
    if run is not None:
        kind = "a trained model " + ("that is shipped" if run.is_shipped else "of your own")
        yield f"{run.path.resolve().name}, {kind}, of the model {card.name}: {card.file}"
        if not run.is_shipped:
            yield f"trained on  {run.trained_on['name']} from {run.trained_on['source']}"
        if start := run.table.get("weights"):
            yield f"began from  the weights of {start}"
    elif card.file:
        yield f"{card.name}, your own card: {card.file}"
    else:
        yield f"{card.name} on {card.corpus} (cards for: {', '.join(card.corpora)})"
    yield "\n".join([*filter(None, (card.paper, card.table, card.note)), ""])
    if card.parameters is not None:
        printed = f" (in the paper: {card.printed})" if card.printed else ""
        yield f"parameters  {card.parameters:,}{printed}"
    if card.recipe:
        text = f"--corpus {card.corpus or 'FILE'}"
        if card.builder == "encoder_decoder":
            text = "--pairs FOLDER"
        measure = f"dualnet train {shlex.quote(name)} {text} --output RUN --dry-run"
        yield f"time        of an epoch on this machine, from a few steps: {measure}"
    if card.seed is not None:
        yield f"seed        {card.seed}"
    if card.lowercase:
        yield "text        lower-cased"
    for key, pair in card.published.items():
        valid, test = map(number, pair)
        if key == "bleu" or key.startswith("rouge"):
            yield f"published   {key.upper().replace('_', '-')} {test} test"
        else:
            yield f"published   {key}: perplexity {valid} validation, {test} test"
    for result in card.also_published:
        yield f"also        {listed_result(result)}"
    for result in card.measured:
        command = f" ({result['command']})" if "command" in result else ""
        yield f"measured    {listed_result(result)}{command}"


def _settings(card: zoo.Card) -> Iterator[str]:
    """Yield the lines of the settings of a model, as TOML."""
    for section in ("config", "recipe", "evaluation"):
        settings = getattr(card, section)
        if settings:
            yield f"\n[{section}]"
        for key, value in settings.items():
            ours = "  (our choice; not in the paper)" if f"{section}.{key}" in card.ours else ""
            yield f"{key} = {json.dumps(value, default=str)}{ours}"


# --- the table of `--markdown`


def model_table(names: Iterable[str]) -> str:
    """Return a Markdown table with a row per corpus of each model in `names`."""
    columns = [key.replace("finetuned", "fine-tuned") for key in COLUMNS]
    head = ["model", "corpus", "parameters", *columns, "measured"]
    rows = [_row(zoo.card(name, corpus)) for name in names for corpus in zoo.card(name).corpora]
    rule = ["---", "---", "---:", *["---"] * (len(COLUMNS) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _row(card: zoo.Card) -> list[str]:
    results = {key: _figures(card.published.get(key, ())) for key in COLUMNS}
    results["static"] = results["static"] or translation_results(card)
    if "refinetuned" in card.published:
        results["finetuned"] += f"; until no gain {_figures(card.published['refinetuned'])}"
    measured = "; ".join(map(listed_result, card.measured)).replace("|", "\\|")
    return [f"`{card.name}`", card.corpus, f"{card.parameters:,}", *results.values(), measured]


def translation_results(card: zoo.Card) -> str:
    """Return the published BLEU or ROUGE of a model that translates, or ""."""
    if "bleu" in card.published:
        return f"BLEU {_figures(card.published['bleu'][1:])}"
    if "rouge_1" in card.published:
        figures = (card.published[name][1:] for name in ("rouge_1", "rouge_2", "rouge_l"))
        return f"ROUGE-1/2/L {'/'.join(map(_figures, figures))}"
    return ""


def listed_result(result: Mapping[str, Any]) -> str:
    """Return the source, settings, parameters and figures of a result, published or our own."""
    setup, figures = [], []
    for key, value in result.items():
        if isinstance(value, list) and all(map(is_number, value)):
            figures.append(f"{key.replace('_', ' ')} {_figures(value)}")
        elif key == "parameters" and is_number(value):
            setup.append(f"{value:,} parameters")
        elif key != "command":
            named = key in ("source", "table", "settings")
            setup.append(str(value) if named else f"{key} {value}")
    return ": ".join(", ".join(parts) for parts in (setup, figures) if parts)


def _figures(values: Iterable[float]) -> str:
    """Return "validation/test" as it is written, with "-" for a missing figure."""
    return "/".join("-" if math.isnan(x) else str(x) for x in values)
