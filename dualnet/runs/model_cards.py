"""Model cards: the `README.md` of a RUN folder, of a shipped model and of an export."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from dualnet.builders import LanguageModel, TranslationModel
from dualnet.runs import shipped
from dualnet.runs.run import Run

README = "README.md"
SPLITS = ("valid", "test")
MEASURES = {
    "perplexity": "perplexity per token",
    "bits_per_byte": "bits per byte",
    "bits_per_character": "bits per character",
}
RECIPE = ("optimizer", "learning_rate", "epochs", "batch_size", "sequence_length")


def model_card(
    model: LanguageModel,
    run: Run | None,
    *,
    name: str = "",
    title: str = "",
    library: str = "dualnet",
) -> str:
    """Return the text of a model card: what `model` is, read and scored, and its licence.

    Args:
        run: The RUN that has its weights, or None.
        name: That of a shipped model, which loads by it; by default that of the folder.
        title: By default the name.
        library: "dualnet" or "transformers", whose use is shown.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.runs.model_cards import model_card
    >>> card = model_card(zoo.build("lstm", vocabulary_size=9, units=4), None)
    >>> card.splitlines()[-1]
    'Not stated. The licence of the training text may bind the weights, too.'
    """
    import jinja2

    table = {} if run is None else run.table
    own = run.path.resolve().name if run is not None and run.is_folder else model.name
    title = title or name or own
    licence = shipped.licences_of(run).get(shipped.LICENCES, "").rstrip()
    recipe = table.get("recipe", {})
    template = (resources.files("dualnet.runs") / "model_card.md").read_text("utf-8")
    text = jinja2.Template(template, trim_blocks=True, keep_trailing_newline=True).render(
        model=model,
        translates=isinstance(model, TranslationModel),
        table=table,
        recipe=", ".join(f"{key} {recipe[key]}" for key in RECIPE if key in recipe),
        figures=_figures({} if run is None else run.results),
        library=library,
        name=name,
        title=title,
        licence=licence,
        licence_file=shipped.LICENCES,
    )
    return text.encode(errors="replace").decode()  # the name of a folder may be no UTF-8


def _figures(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a table of the `results.json` of a RUN; none without figures."""
    flat = {split: {key: results.get(f"{split}_{key}") for key in MEASURES} for split in SPLITS}
    static, dynamic = results.get("static", flat), results.get("dynamic", {})
    rows = {}
    for texts, learning in ((static, ""), (dynamic, ", learning while reading")):
        for split in SPLITS:
            genres = texts.get(f"{split} by genre", {})
            for genre, figures in {"": texts.get(split, {}), **genres}.items():
                rows[f"{split}{genre and f', {genre}'}{learning}"] = {
                    key: f"{figures[key]:.2f}" for key in MEASURES if figures.get(key) is not None
                }
    shown = [key for key in MEASURES if any(key in row for row in rows.values())]
    head = ["text", *(MEASURES[key] for key in shown)]
    cells = [[text, *(row.get(key, "") for key in shown)] for text, row in rows.items() if row]
    return [head, ["---"] * len(head), *cells] if cells else []
