"""The builder of ensembles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError
from dualnet.builders.model import LanguageModel
from dualnet.builders.wrappers import WRAPPERS, check_wrappers, quiet, side_by_side, wrap


def ensemble_model(
    *,
    members: Sequence[Mapping[str, Any]],
    gate: str = "none",
    gate_units: int = 300,
    gate_dropout: float = 0.0,
    gate_initializer_range: float = 0.05,
    cache_size: int = 0,
    cache_weight: float = 0.2,
    cache_scale: float = 0.3,
    cache_start: str = "at_once",
    name: str = "ensemble",
) -> LanguageModel:
    """Return several models in one, whose probabilities are the mean of theirs.

    With a gate, one for all: the mean over members m of softmax(g * s_m) (Takase et al.,
    2017, equation 9). With a cache, one for all, whose keys are the members' hidden
    vectors side by side (our choice: no paper has it). What is for the training of a
    member alone, past decoding and the fraternal penalty, is left out.

    Args:
        members: one table for each, `{"builder": name, "arguments": {...}}`.
        gate: "none", "input" or "lstm", as for `language_model`.
        gate_units, gate_dropout, gate_initializer_range: as for `language_model`.
        cache_size, cache_weight, cache_scale, cache_start: as for `language_model`.
        name: str. Name of the model.

    Returns:
        `LanguageModel`, randomly initialised; each member differently. Its graph holds
        them as layers `member_1`, `member_2` and so on.

    Raises:
        ValueError: if there are no members, or they differ in the number of words.

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907, section 4.4
    """
    from dualnet.builders import BUILDERS

    arguments: dict[str, Any] = {key: value for key, value in locals().items() if key in WRAPPERS}
    if isinstance(members, (str, Mapping)) or not members:
        raise ArgumentError(
            "members", f"must be a list of at least one model. Received: members={members!r}."
        )
    arguments["members"] = [
        {"builder": each["builder"], "arguments": dict(each["arguments"])} for each in members
    ]
    check_wrappers(arguments)
    if gate == "input_and_hidden":
        raise ArgumentError(
            "gate",
            "must be 'input' or 'lstm' for an ensemble, whose members have hidden states "
            "of their own. Received: gate='input_and_hidden'.",
        )
    used = quiet(arguments) if gate != "none" else arguments
    made = [
        BUILDERS[each["builder"]](**each["arguments"], name=f"member_{i}")
        for i, each in enumerate(used["members"], start=1)
    ]
    sizes = [member.vocabulary_size for member in made]
    if len(set(sizes)) > 1:
        raise ArgumentError(
            "members", f"must have one vocabulary. Received: models of {sizes} words."
        )
    if cache_size and any(member.padded for member in made):
        check_wrappers({**arguments, "padded": True})
    return wrap(side_by_side(made), builder="ensemble", arguments=arguments, name=name)
