"""A worker on the machine of its chief: `python -m dualnet.tuning.worker FOLDER`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from dualnet.training.interrupts import Interrupts
from dualnet.tuning.search_folder import read_search
from dualnet.tuning.trial import STOPPED, end_with_parent


def main(folder: Path) -> int:
    """Run trials of the search in `folder` until there are no more; 0, or `STOPPED`."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    with Interrupts() as interrupts:
        return 0 if read_search(folder).work(interrupts) else STOPPED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
