"""The program of a worker on the chief's machine: `python -m dualnet.tuning.worker_process FOLDER`.

It runs trials that the chief gives out, each in a process of its own.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from dualnet._files import is_full
from dualnet.training.interrupts import Interrupts
from dualnet.tuning.search_folder import read_search
from dualnet.tuning.trial import DISK_FULL, STOPPED
from dualnet.tuning.trial_process import end_with_parent


def main(folder: Path) -> int:
    """Run trials of the search in `folder`; return 0 when none is left.

    Return `STOPPED` if told to stop, and `DISK_FULL` if a trial could not write its files.
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    with Interrupts() as interrupts:
        try:
            return 0 if read_search(folder).work(interrupts) else STOPPED
        except OSError as error:
            if is_full(error):
                return DISK_FULL
            raise


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
