"""Writes a RUN folder of a model that was not trained in it."""

from collections.abc import Iterable
from pathlib import Path

from dualnet._checks import StrPath
from dualnet._files import claim, write_whole
from dualnet.builders import LanguageModel
from dualnet.cards import Card
from dualnet.runs import folder as run_folder
from dualnet.runs.loading import write_weights
from dualnet.runs.model_cards import README, model_card
from dualnet.runs.run import Run
from dualnet.runs.shipped import check_own, copy_licences


def write_run(
    folder: Path, model: LanguageModel, card: Card, *, sources: Iterable[StrPath] = ()
) -> None:
    """Write a RUN folder, new or empty, of a `model` with a vocabulary; see `write_files`."""
    check_own(folder)
    with claim(folder, resume=False, may_hold=run_folder.EARLY_FILES):
        write_files(folder, model, card, sources)


def write_files(
    folder: Path, model: LanguageModel, card: Card, sources: Iterable[StrPath], *, title: str = ""
) -> None:
    """Write the files of a RUN folder; `title` is that of its README, by default its name.

    The licences of `sources`, the RUNs that it was made from, come along.
    """
    run_folder.write_vocabularies(folder, model)
    write_weights(folder, model)
    run_folder.write_card(folder, card)
    sources = [*sources]
    copy_licences(folder, *sources)
    run_folder.write_words(folder, *sources)
    write_whole(folder / README, model_card(model, Run.open_folder(folder), title=title))
