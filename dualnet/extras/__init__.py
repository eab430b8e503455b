"""What serves neighbouring trades, on top of the core, which imports none of it.

`import dualnet` imports this module, which adds the formats of `export`; all others are imported
when they are used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dualnet._formats import ADDED, NAMES, Format, Writer

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel
    from dualnet.requests import Exporting


def _for_sherpa(model: LanguageModel, request: Exporting) -> Writer:
    from dualnet.extras import sherpa

    assert request.tokens is not None  # of this format
    return functools.partial(sherpa.sherpa_files, model, sherpa.check_sherpa(model, request.tokens))


def _for_transformers(model: LanguageModel, request: Exporting) -> Writer:
    from dualnet.extras.transformers_folder import write_transformers_folder

    return functools.partial(write_transformers_folder, model)


ADDED["sherpa-onnx"] = Format(".onnx", _for_sherpa)
ADDED["transformers"] = Format("", _for_transformers)
NAMES.update(dict.fromkeys(("TokenMap", "token_map"), "dualnet.extras.sherpa"))
