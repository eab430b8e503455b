"""Model cards: the `README.md` of a RUN folder, of a shipped model and of an export."""

from typing import Any

from dualnet.builders import LanguageModel, TranslationModel
from dualnet.runs import shipped
from dualnet.runs.run import Run

README = "README.md"
TRANSFORMERS = """\
import dualnet.transformers  # KERAS_BACKEND=torch must be set; or give trust_remote_code=True
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".", add_bos_token=True)
inputs = tokenizer("The ship", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))"""
SPLITS = ("valid", "test")
MEASURES = {
    "perplexity": "perplexity per token",
    "bits_per_byte": "bits per byte",
    "bits_per_character": "bits per character",
}
RECIPE = ("optimizer", "learning_rate", "epochs", "batch_size", "sequence_length")


def model_card(
    model: LanguageModel, run: Run | None, *, name: str = "", library: str = "dualnet"
) -> str:
    """Return the text of a model card: what `model` is, read and scored, and its licence.

    Args:
        run: The RUN that has its weights, or None.
        name: That of a shipped model, which loads by it; by default that of the folder.
        library: "dualnet" or "transformers", whose use is shown.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.runs.model_cards import model_card
    >>> card = model_card(zoo.build("lstm", vocabulary_size=9, units=4), None)
    >>> card.splitlines()[-1]
    'Not stated. The licence of the training text may bind the weights, too.'
    """
    table = {} if run is None else run.table
    results = {} if run is None else run.results
    licence, title = "", name or model.name
    if run is not None:
        title = name or (run.path.name if run.is_folder else title)
        if (file := run.path / shipped.LICENCES).is_file():
            licence = file.read_text("utf-8").rstrip()
    task, kind, call = "text-generation", "language", 'dualnet.generate(model, "The")'
    if isinstance(model, TranslationModel):
        task, kind, call = "translation", "translation", 'dualnet.translate(model, ["..."])'
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}", "tags: [dualnet]"]
    lines += ["license: other", f"license_link: {shipped.LICENCES}"] * bool(licence)
    lines += ["---", "", f"# {title}", ""]
    lines += [f"A recurrent {kind} model of {model.count_params():,} parameters, from dualnet."]
    if paper := table.get("paper"):
        lines += [f"Its architecture, `{table['name']}`, is that of {paper}."]
    use = f'import dualnet\n\nmodel = dualnet.load("{name or "."}")\nprint({call})'
    lines += ["", "```python", use if library == "dualnet" else TRANSFORMERS, "```"]
    lines += ["", "## Training", ""]
    if trained_on := table.get("corpus"):
        lines += [f"The corpus `{trained_on['name']}`, SHA-256 `{trained_on['sha256']}`."]
    else:
        lines += ["Not recorded: the model did not come from a RUN folder."]
    if (tokenizer := model.vocabulary) is not None:
        case = ", of lower-cased text" * tokenizer.lowercase
        lines += [f"The tokeniser ({tokenizer.kind}) has {len(tokenizer):,} units{case}."]
    if recipe := table.get("recipe"):
        settings = ", ".join(f"{key} {recipe[key]}" for key in RECIPE if key in recipe)
        lines += [f"The recipe: {settings}; seed {table['seed']}. All of it stands in `card.toml`."]
    lines += ["", "## Figures", "", *_figures(results), "", "## Licence", ""]
    if licence:
        lines += ["```text", licence, "```"]
    else:
        lines += ["Not stated. The licence of the training text may bind the weights, too."]
    text = "\n".join(lines) + "\n"
    return text.encode(errors="replace").decode()  # the name of a folder may be no UTF-8


def _figures(results: dict[str, Any]) -> list[str]:
    """Return a table of the `results.json` of a RUN or of a shipped model."""
    static = {split: {key: results.get(f"{split}_{key}") for key in MEASURES} for split in SPLITS}
    rows = {
        f"{split}{', learning while reading' * (kind == 'dynamic')}": figures[split]
        for kind, figures in (("static", results.get("static") or static),
                              ("dynamic", results.get("dynamic") or {}))
        for split in SPLITS
        if any(value is not None for value in figures.get(split, {}).values())
    }  # fmt: skip
    shown = [key for key in MEASURES if any(row.get(key) is not None for row in rows.values())]
    if not shown:
        return ["Not measured."]
    lines = [["text", *(MEASURES[key] for key in shown)], ["---"] * (1 + len(shown))]
    lines += [
        [text, *("" if row.get(key) is None else f"{row[key]:.2f}" for key in shown)]
        for text, row in rows.items()
    ]
    return ["| " + " | ".join(line) + " |" for line in lines]
