"""The commands `list` and `card`: what the zoo has."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet.cli.command import Options, argument
from dualnet.cli.console import finite, print_table, printable
from dualnet.cli.model_table import measured_result, model_table, translation_results
from dualnet.cli.options import OfModel
from dualnet.runs.folder import RESULTS
from dualnet.runs.shipped import card_of_shipped, find_run


class List(Options):
    """Options of `list`.

    Args:
        pattern: List only names that match, e.g. "dual_*".
        pretrained: List the trained models that are shipped, with their test results.
        markdown: Print a Markdown table with the results on all corpora.
    """

    pattern: str = argument("*", nargs="?", metavar="PATTERN")
    pretrained: bool = False
    markdown: bool = False


def list_models(options: List) -> None:
    """List the models of the zoo.

    Examples:
        dualnet list "dual_*"
    """
    names = zoo.list_models(options.pattern, pretrained=options.pretrained)
    if options.pretrained:
        _list_pretrained(options, names)
        return
    if options.markdown:
        if options.json:
            raise ArgumentError("--markdown", "cannot be combined with --json. Choose one of them.")
        print(model_table(names))
    elif options.json:
        print(json.dumps(names))
    elif not names:
        trained = zoo.list_models(options.pattern, pretrained=True)
        way_out = " `dualnet list --pretrained` lists trained models." if trained else ""
        print(f"No model matches {options.pattern!r}.{way_out}")
    else:
        rows = [
            [card.name, f"{card.parameters:,}",
             translation_results(card) or _pair(card, "static", "finetuned", "samples"),
             _pair(card, "dynamic"), ", ".join(card.corpora)]
            for card in map(zoo.card, names)
        ]  # fmt: skip
        print_table(["model", "parameters", "published", "dynamic", "corpora"], rows)
        print("\nParameters and perplexities (validation/test) are for the first corpus. Where the "
              "paper reports\nno static perplexity, the one after fine-tuning or over dropout "
              "samples is shown.\n"
              "`dualnet list --pretrained` lists trained models.")  # fmt: skip


def _list_pretrained(options: List, names: list[str]) -> None:
    if options.markdown:
        raise ArgumentError("--markdown", "cannot be combined with --pretrained.")
    if options.json:
        print(json.dumps(names))
    elif not names:
        print(f"No shipped model matches {options.pattern!r}." if zoo.list_models(pretrained=True)
              else "No model is shipped.")  # fmt: skip
    else:
        rows = []
        for name in names:
            results = json.loads((find_run(name) / RESULTS).read_text("utf-8"))
            figures = [results[protocol]["test"] for protocol in ("static", "dynamic")]
            rows.append([name, f"{results['parameters']:,}",
                         *(f"{figure['perplexity']:.2f}" for figure in figures),
                         *(f"{figure['bits_per_byte']:.3f}" for figure in figures)])  # fmt: skip
        print_table(["model", "parameters", "perplexity", "dynamic", "bits per byte", "dynamic"],
                    rows)  # fmt: skip
        print(
            "\nFigures of the test text: perplexity per token and bits per byte, each static and "
            "with\ndynamic evaluation. A name may stand wherever a command takes a RUN."
        )


def _pair(card: zoo.Card, *keys: str) -> str:
    """Return the first published result among `keys`, or "-"."""
    pair = next((card.published[key] for key in keys if key in card.published), [math.nan] * 2)
    return "-" if all(map(math.isnan, pair)) else "/".join(map(_perplexity, pair))


def _perplexity(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


class ShownCard(OfModel):
    """Options of `card`.

    Args:
        corpus: Published corpus to show the card for (default: the first one).
    """

    corpus: str | None = None


def card(options: ShownCard) -> None:
    """Show the card of a model: paper, sizes, recipe, results.

    Examples:
        dualnet card dual_mdlstm --corpus wikitext-2
    """
    card = zoo.card(options.name, options.corpus)
    if options.json:
        table = dataclasses.asdict(card)
        for key, pair in table["published"].items():
            table["published"][key] = list(map(finite, pair))
        table["also_published"] = [
            {k: list(map(finite, v)) if isinstance(v, list) else v for k, v in result.items()}
            for result in card.also_published
        ]
        print(json.dumps(table, default=str))
        return
    if card_of_shipped(options.name):
        print(f"{Path(card.file).parent.name}, a trained model that is shipped, of the model "
              f"{card.name}: {card.file}")  # fmt: skip
    elif card.file:
        print(printable(f"{card.name}, your own card: {card.file}"))
    else:
        print(f"{card.name} on {card.corpus} (cards for: {', '.join(card.corpora)})")
    about = "\n".join(filter(None, (card.paper, card.table, card.note)))
    print(printable(about), end="\n\n")
    if card.parameters is not None:
        printed = printable(f" (in the paper: {card.printed})") if card.printed else ""
        print(f"parameters  {card.parameters:,}{printed}")
    if card.seed is not None:
        print(f"seed        {card.seed}")
    if card.lowercase:
        print("text        lower-cased")
    for key, pair in card.published.items():
        valid, test = map(_perplexity, pair)
        name = printable(key)
        if key == "bleu" or key.startswith("rouge"):
            print(f"published   {name.upper().replace('_', '-')} {test} test")
        else:
            print(f"published   {name}: perplexity {valid} validation, {test} test")
    for result in card.also_published:
        where = [str(value) for value in result.values() if not isinstance(value, list)]
        pairs = {key: pair for key, pair in result.items() if isinstance(pair, list)}
        figures = [
            f"{key} {'/'.join('-' if math.isnan(value) else str(value) for value in pair)}"
            for key, pair in pairs.items()
        ]
        print(printable(f"also        {', '.join(where)}: {', '.join(figures)}"))
    for result in card.measured:
        command = f" ({result['command']})" if "command" in result else ""
        print(printable(f"measured    {measured_result(result)}{command}"))
    for section in ("config", "recipe", "evaluation"):
        settings = getattr(card, section)
        if settings:
            print(f"\n[{section}]")
        for key, value in settings.items():
            ours = "  (our choice; not in the paper)" if f"{section}.{key}" in card.ours else ""
            print(f"{printable(key)} = {json.dumps(value, default=str)}{ours}")
