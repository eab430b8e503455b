"""The report of a search: its trials as `Row`s, and tables, plots and display made of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualnet.tuning.report.figures import write_plots
from dualnet.tuning.report.hparams import write_hparams
from dualnet.tuning.report.tables import Row, write_tables

if TYPE_CHECKING:
    from dualnet.tuning.job import Job


def write_report(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Write tables, plots and TensorBoard's HParams into `folder`; takes a few seconds."""
    write_tables(folder, job, rows)
    write_plots(folder, job, rows)
    write_hparams(folder, job, rows)
