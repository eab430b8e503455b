"""Writes a RUN folder of a model that was not trained in it."""

from collections.abc import Iterable
from pathlib import Path

from dualnet._checks import StrPath
from dualnet._files import claim, write_whole
from dualnet.builders import LanguageModel
from dualnet.cards import Card
from dualnet.runs.folder import EARLY_FILES, write_card, write_vocabulary
from dualnet.runs.loading import write_weights
from dualnet.runs.model_cards import README, model_card
from dualnet.runs.run import Run
from dualnet.runs.shipped import check_own, copy_licences


def write_run(
    folder: Path,
    model: LanguageModel,
    card: Card,
    *,
    sources: Iterable[StrPath] = (),
) -> None:
    """Write a RUN folder, new or empty, of a `model` with a vocabulary.

    The licences of `sources`, the RUNs that it was made from, come along.
    """
    assert model.vocabulary is not None
    check_own(folder)
    with claim(folder, holds="run", resume=False, may_hold=EARLY_FILES):
        write_vocabulary(folder, model.vocabulary)
        write_weights(folder, model)
        write_card(folder, card)
        copy_licences(folder, sources)
        write_whole(folder / README, model_card(model, Run.open_folder(folder)))
