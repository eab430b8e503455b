"""The cases that are measured, and the settings of dualnet and its peers for each."""

from __future__ import annotations

import dataclasses
from typing import Any

from dualnet import zoo

PTB_TEST = 82_430  # tokens
BATCHES = (64, 128, 256)  # among which evaluation takes its best
NO_RECURRENT = "without dropout of the recurrent h, which nn.LSTM does not know"


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: Name on the command line.
        model: Name of the card.
        kind: "training", a step with its optimizer; "dynamic", dynamic evaluation; or
            "evaluation".
        batch, time: Rows, and tokens of a row, of a step. Batch 0: the best of `BATCHES`.
        overrides: Arguments of the builder in place of the card's.
        recipe: Arguments of the recipe in place of the card's.
        tokens: Of the text of an evaluation that one turn reads.
        corpus: Whose card is meant; the card's first by default.
        source: Tokens of each source of a translation, whose target has `time`.
        note: What a reader should know.
    """

    name: str
    model: str
    kind: str
    batch: int
    time: int
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    corpus: str | None = None
    source: int = 0
    note: str = ""


SMALL = {"initializer_range": 0.1} | dict.fromkeys(
    ("input_dropout", "internal_dropout", "output_dropout"), 0.0
)
CASES = {
    case.name: case
    for case in (
        Case("dual_mdlstm", "dual_mdlstm", "training", 32, 25),
        Case("lstm", "lstm", "training", 32, 25, {"units": 600, "recurrent_dropout": 0.0},
             note=NO_RECURRENT),
        Case("dlstm", "dlstm", "training", 32, 25, {"recurrent_dropout": 0.0},
             note=NO_RECURRENT),
        *(Case(cell, "lstm", "training", 32, 25,
               {"units": 600, "cell": cell, "rounds": 5, "rank": 80},
               note="no card: one layer, else the recipe of lstm")
          for cell in ("mogrifier_lstm", "rewired_lstm")),
        Case("awd_lstm", "awd_lstm", "training", 20, 70,
             note="every segment of 70 tokens; the averages of the weights are not on yet"),
        Case("awd_lstm_doc", "awd_lstm_doc", "training", 12, 70,
             note="every segment of 70 tokens; the averages of the weights are not on yet"),
        Case("zaremba_small", "zaremba_medium", "training", 20, 20, {"units": 200} | SMALL,
             note="two layers of 200 units; no card: the small model of Zaremba's code, 20 x 20 "
             "and no dropout, else the recipe of zaremba_medium"),
        Case("encdec", "encdec", "training", 64, 15, {"units": 256}, {"label_smoothing": 0.0},
             corpus="multi30k", source=14,
             note="sources of 14 tokens, targets of 15, about the mean of Multi30k, without "
             "padding; tokens are those of the targets; Multi30k's recipe without label "
             "smoothing"),
        Case("dynamic_5", "dual_mdlstm", "dynamic", 1, 5,
             note="NAdam; s per segment, without what the start of a call takes"),
        Case("dynamic_25", "dual_mdlstm", "dynamic", 1, 25,
             note="NAdam; s per segment, without what the start of a call takes"),
        Case("evaluation", "dual_mdlstm", "evaluation", 0, 0, tokens=8_192,
             note=f"each with the best batch of {BATCHES}; a turn reads 8,192 tokens, about a "
             f"tenth of a text of {PTB_TEST:,}"),
        Case("evaluation_1", "dual_mdlstm", "evaluation", 1, 0, tokens=1_024,
             note=f"batch 1; a turn reads 1,024 tokens of a text of {PTB_TEST:,}"),
    )
}  # fmt: skip


def tiny(case: Case) -> Case:
    """Return `case` with sizes that say nothing but that all settings work."""
    return dataclasses.replace(
        case,
        overrides={
            **{key: value for key, value in case.overrides.items() if key != "units"},
            "units": 16,
            "vocabulary_size": 500,
            **({"rank": 4} if "dual" in case.model or "rank" in case.overrides else {}),
            **({"experts": [0, 0, 2, 3]} if "doc" in case.model else {}),
        },
        batch=min(case.batch, 4),
        time=min(case.time, 5),
        source=min(case.source, 4),
        tokens=min(case.tokens, 1_024),
        note="tiny sizes: the numbers mean nothing",
    )


def described(case: Case) -> dict[str, Any]:
    """Return all that a worker must know of `case`, as JSON can hold it.

    `config` is complete for the peers, who do not know dualnet's defaults: sizes of the
    embedding and of each layer, rates and penalties. `arguments` and `recipe` are what
    dualnet is given.
    """
    card = zoo.card(case.model, case.corpus)
    config = dict(zoo.resolve(card.config, case.overrides))
    recipe = {"optimizer": "nadam", "learning_rate": 1e-3, **card.recipe, **case.recipe}
    return {
        "name": case.name,
        "model": case.model,
        "kind": case.kind,
        "batch": case.batch,
        "time": case.time,
        "tokens": case.tokens,
        "corpus": case.corpus,
        "source": case.source,
        "arguments": case.overrides,
        "recipe": recipe,
        "config": {**config, **_sizes(config)},
    }


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes that follow from a card's, as `zoo.card` and the paper say."""
    units = config.get("units")
    embedding = config.get("embedding_units") or units
    recurrent = config.get("recurrent_units") or units or embedding
    plain = config.get("connection", "plain") == "plain"
    tied = config.get("tied", True)
    if isinstance(recurrent, int):
        recurrent = [recurrent] * config.get("recurrent_layers", 1)
        if plain and tied and not config.get("experts"):
            recurrent[-1] = embedding
    return {
        "embedding_units": embedding,
        "layers": list(recurrent),
        "dual_units": 0 if plain else config.get("dual_units") or embedding,
        "tied": tied,
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """One way to do the work of a case.

    Attributes:
        name: Name on the command line and in the table.
        library: "dualnet", "torch" or "keras".
        precision: "float32" or "bfloat16" (weights, their sums and logits stay float32).
        backend: Of Keras.
        options: Of the library's own: `plain` (modules of PyTorch as they are), `compile` ("",
            "parts" or "whole"), `head`, `unroll`.
        environment: Variables of the process.
    """

    name: str
    library: str
    precision: str
    backend: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


PRECISIONS = ("float32", "bfloat16")


def settings_for(case: Case) -> list[Setting]:
    """Return the settings that are measured for `case`, dualnet's first."""
    return [*_ours(case), *_torch(case), *([] if case.source else _keras(case))]


def _ours(case: Case) -> list[Setting]:
    return [
        # One operation at a time, as the command line sets it, so that runs repeat exactly.
        Setting(f"dualnet-{backend}-{precision}", "dualnet", precision, backend,
                environment={"TF_NUM_INTEROP_THREADS": "1"} if backend == "tensorflow" else {})
        for backend in ("tensorflow", "jax")
        for precision in PRECISIONS
    ]  # fmt: skip


def _torch(case: Case) -> list[Setting]:
    kind = "eager" if case.model == "dual_mdlstm" or "cell" in case.overrides else "lstm"
    # Heads of the mixture: all probabilities, those of the targets, or these in chunks.
    heads = ("all", "targets", "chunked") if case.model == "awd_lstm_doc" else ("",)
    found = []
    for precision in PRECISIONS:
        for head in heads:
            part = f"{head}-" * bool(head)
            for compiled in (False, True):
                if head == "all" and (compiled or precision == "bfloat16"):
                    continue  # slower and larger than the others by far
                how = "compile" if kind == "eager" else "lstm-compile"
                found.append(
                    Setting(f"torch-{how if compiled else kind}-{part}{precision}", "torch",
                            precision, options={"compile": "parts" * compiled, "head": head})
                )  # fmt: skip
    # Neither with weight dropout nor with the rewired LSTM.
    if not case.source and case.name not in ("awd_lstm", "awd_lstm_doc", "rewired_lstm"):
        for precision in PRECISIONS:
            found.append(
                Setting(f"torch-plain-{precision}", "torch", precision, options={"plain": True})
            )
            if case.kind != "evaluation":  # its long segments take minutes to compile
                found.append(
                    Setting(f"torch-plain-compile-{precision}", "torch", precision,
                            options={"plain": True, "compile": "whole"})
                )  # fmt: skip
    if case.name in ("dual_mdlstm", "encdec"):  # unrolled over time; to compile takes minutes
        found += [
            Setting(f"torch-compile-whole-{precision}", "torch", precision,
                    options={"compile": "whole"})
            for precision in PRECISIONS
        ]  # fmt: skip
    return found


def _keras(case: Case) -> list[Setting]:
    every = case.name == "dual_mdlstm"  # elsewhere what was the best there or may be here
    short = case.kind != "evaluation" and case.time <= 35  # else to unroll takes minutes
    found = []
    for precision in PRECISIONS:
        found.append(Setting(f"keras-tensorflow-{precision}", "keras", precision, "tensorflow"))
        if short and (every or precision == "float32"):
            found.append(
                Setting(f"keras-tensorflow-unroll-{precision}", "keras", precision, "tensorflow",
                        {"unroll": True})
            )  # fmt: skip
        if every or precision == "float32":
            found.append(Setting(f"keras-jax-{precision}", "keras", precision, "jax"))
    if short:
        found.append(
            Setting("keras-jax-unroll-float32", "keras", "float32", "jax", {"unroll": True})
        )
    return found
