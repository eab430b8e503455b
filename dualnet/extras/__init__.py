"""What serves neighbouring trades, on top of the core, which imports none of it.

`import dualnet` imports this module, which adds the formats of `export`; all others are imported
when they are used.
"""

import functools
from typing import Any

from dualnet._formats import ADDED, NAMES, Format, Writer


def _sherpa(name: str) -> Any:
    from dualnet.extras import sherpa

    return getattr(sherpa, name)


def _for_sherpa(model: Any, request: Any) -> Writer:
    return _sherpa("prepare")(model, request.tokens)


def _for_transformers(model: Any, request: Any) -> Writer:
    from dualnet.extras.transformers_folder import write_transformers_folder

    return functools.partial(write_transformers_folder, model)


ADDED["sherpa-onnx"] = Format(".onnx", _for_sherpa)
ADDED["transformers"] = Format("", _for_transformers)
NAMES.update({name: functools.partial(_sherpa, name) for name in ("TokenMap", "token_map")})
