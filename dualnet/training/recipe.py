"""Recipes: the optimizer, its schedule, and the batches that a model is trained with."""

from collections.abc import Mapping
from typing import Any, TypedDict

import keras
import numpy as np

from dualnet import zoo
from dualnet._checks import ArgumentError, check_factor, check_fraction, did_you_mean
from dualnet._fields import Settings, choice, count, field, positive
from dualnet.builders.parts import part_options
from dualnet.builders.stream_training import LOSS_REDUCTIONS
from dualnet.corpora.token_batches import check_lengths
from dualnet.training.kept import check_keep_every
from dualnet.training.optimizers import AVERAGES, SGD, Adam, AdamW, Nadam, RectifiedAdam

BATCHING = ("streams", "sentences", "pairs")
ONLY_WITH = {  # settings of some batches only
    "streams": {"length_deviation", "partial_shuffle", "drop_state_probability"},
    "sentences": {"group_by_length"},
    "pairs": {"tokens_per_batch", "watch"},
}
OPTIMIZERS: dict[str, type[keras.optimizers.Optimizer]] = {
    "adam": Adam, "adamw": AdamW, "nadam": Nadam, "rectified_adam": RectifiedAdam, "sgd": SGD,
}  # fmt: skip


class Recipe(Settings):
    """How a model is trained.

    Epoch e, counted from 1, has the learning rate
    `learning_rate * decay ** max(e - hold_epochs, 0)`, times `plateau_decay` for each
    earlier epoch whose validation perplexity was not a new best, and divided by `sqrt(e)`
    with `square_root_decay`; `linear_decay` lowers it from step to step. With random lengths,
    the rate of a step is scaled by the length of its segment over `sequence_length`.

    Differs from the released code: AWD-LSTM applies the length of a segment one segment
    late while it averages, since torch's ASGD keeps the step size of the step before, and
    takes no segment longer than 80 in fine-tuning; DGLSTM forgets at each new epoch that it
    has halved the rate. None of this is reproduced here.

    Args:
        {arguments}

    Example:

    >>> from dualnet import training
    >>> recipe = training.Recipe(optimizer="sgd", learning_rate=30.0, averaging="asgd")
    >>> recipe.epochs, recipe.make_optimizer().average
    (100, 'asgd')

    References: Merity et al., 2018, https://arxiv.org/abs/1708.02182 (random lengths,
    "asgd", fine-tuning); Takase et al., 2017, https://arxiv.org/abs/1709.08907
    (`square_root_decay`); Melis et al., 2020, https://arxiv.org/abs/1909.01792 ("mean");
    Press, 2019, https://arxiv.org/abs/1903.04167 (partial shuffle); Liu et al., 2020,
    https://arxiv.org/abs/1908.03265 ("rectified_adam"); Loshchilov and Hutter, 2019,
    https://arxiv.org/abs/1711.05101 ("adamw").
    """

    optimizer: str = choice("nadam", OPTIMIZERS)
    """"nadam", "adam", "adamw", "rectified_adam" (Liu et al., 2020) or "sgd"."""

    learning_rate: float = positive(1e-3)
    """float above 0."""

    beta_1: float = field(0.9, check_fraction)
    """float, at least 0 and below 1. Momentum of all but "sgd"."""

    epsilon: float = positive(1e-7)
    """float above 0. Of all but "sgd", added to the root of the mean square."""

    clipnorm: float = 0.0
    """float. Maximum norm of each weight's gradient; 0 for none."""

    global_clipnorm: float = 0.0
    """float. Maximum norm of all gradients together; 0 for none. Excludes `clipnorm`."""

    weight_decay: float = 0.0
    """float. `weight_decay * w` is added to the gradient of every weight w after clipping, as in
    torch's optimizers. With "adam" and "nadam" it therefore goes through their moments and shrinks
    weights with small gradients more than those with large ones; Keras's own decay bypasses the
    moments, and so does that of "adamw" (Loshchilov and Hutter, 2019)."""

    loss_reduction: str = choice("mean", LOSS_REDUCTIONS)
    """"mean" over the tokens of a batch, or "sum": the sum over time of the mean over rows.
    Penalties are the same in both. Clipping thresholds and rates of "sgd" do not carry over from
    one to the other."""

    batching: str = choice("streams", BATCHING)
    """"streams", the text as parallel streams with carried state; or "sentences", whole sentences
    in a new order each epoch, padded on the left, each from the zero state, in evaluation too; or
    "pairs", of a corpus of `load_pairs`, those of similar length together."""

    batch_size: int = count(32)
    """int. Number of parallel streams, of sentences, or at most of pairs."""

    group_by_length: bool = False
    """bool. Batches hold sentences of similar length, so that little time goes into padding.
    Validation is the same but for rounding."""

    tokens_per_batch: int = 0
    """int. For pairs, the most positions of source and target that a batch has, padding included; 0
    for no limit."""

    sequence_length: int = count(25)
    """int. For streams, the tokens between two updates and the reach of back-propagation."""

    length_deviation: float = 0.0
    """float. Above 0, segments have random lengths, see `TokenBatches`."""

    longest_length: int = 0
    """int. Maximum random length; 0 for no limit."""

    partial_shuffle: bool = False
    """bool. Before each epoch, cut every stream at a random point and swap the halves."""

    drop_state_probability: float = field(0.0, check_fraction)
    """float, at least 0 and below 1. The probability with which a stream begins a segment in the
    zero state instead of the one that it has come to, as texts do that are read later (Melis et
    al., 2018, https://arxiv.org/abs/1707.05589, in their code). Without it, training in one pass
    begins each stream only once."""

    epochs: int = count(100)
    """int. Passes over the training text, not counting fine-tuning."""

    hold_epochs: int = 0
    """int. Epochs before the learning rate decays."""

    decay: float = field(1.0, check_factor)
    """float above 0, at most 1. Factor of the learning rate per epoch after that."""

    plateau_decay: float = field(1.0, check_factor)
    """float above 0, at most 1. Factor after an epoch without improvement."""

    linear_decay: bool = False
    """bool. Also lower the rate from step to step, in a straight line from the first one to zero at
    the end of the last of `epochs`. For training in one pass."""

    square_root_decay: bool = False
    """bool. Divide the learning rate of epoch e by sqrt(e) (Takase et al., 2017)."""

    averaging: str = choice("none", AVERAGES)
    """"none", "asgd", "mean" or "two_tailed". From some epoch on the weights are averaged after
    every step (see `training.optimizers.Averaging`). Validation and the saved best weights then use
    the averages; training continues from the raw weights. "asgd", which needs the optimizer "sgd",
    starts after an epoch whose validation perplexity exceeds the minimum of all earlier ones except
    the `average_interval` right before it; "mean" starts after `average_interval` epochs in a row
    without a new best. "two_tailed" needs no such choice: it averages from the first step, and
    drops early weights once that helps validation (Melis, 2022, https://arxiv.org/abs/2209.12581).
    While the plain weights are better, it keeps those. `metrics.csv` has the perplexities of all
    three, and the RUN the best weights without averaging, too, as `plain.weights.h5`."""

    average_interval: int = count(5)
    """int, at least 1."""

    average_from: int = 0
    """int. Epoch, from 1, in which averaging starts at the latest; 0 for no such limit."""

    finetune: str = choice("none", ("none", "once", "until_no_gain"))
    """"none", "once" or "until_no_gain". After the last epoch, a round of fine-tuning continues
    from the best weights with a fresh average, active from its first step. The round ends after an
    epoch whose validation perplexity exceeds the minimum of all earlier ones of the round except
    the `average_interval` right before it. "until_no_gain" adds rounds until one does not lower the
    best validation perplexity. Needs `averaging="asgd"`."""

    finetune_epochs: int = 0
    """int. Maximum epochs per round; 0 for as many as `epochs`."""

    finetune_learning_rate: float = 0.0
    """float. Constant learning rate of the rounds; 0 for `learning_rate`."""

    label_smoothing: float = field(0.0, check_fraction)
    """float, at least 0 and below 1. Share of the training loss that is the mean of -log p over all
    words, instead of the target alone (Szegedy et al., 2016, https://arxiv.org/abs/1512.00567)."""

    dropout_samples: int = count(1)
    """int, at least 1. Each step reads its batch so many times, with masks and states of their own,
    and trains -log of the mean of the probabilities of each word (Melis, 2022,
    https://arxiv.org/abs/2211.01848). `embedding_dropout` and `weight_dropout` draw once for all
    rows, and so for all samples. More samples regularise less: raise the dropouts, and evaluate at
    the best temperature."""

    on_divergence: str = choice("stop", ("stop", "restart"))
    """"stop" or "restart". An epoch has diverged if a loss or a weight is not finite; with
    "restart", also if its validation perplexity (of the plain weights with "two_tailed") is not
    finite, or over twice the best so far while its training perplexity is no new best. "stop" then
    ends training with an error. "restart" goes back to the end of the best epoch so far, or to the
    start, with the optimizer and the averages as they were then, and 0.9 times the learning rate
    (Melis, 2022). The epochs since then are dropped. After 20 restarts it stops. The limit, and
    when an epoch has diverged, are our choice."""

    patience: int = 0
    """int. Training ends after so many epochs in a row without a new best validation result; 0 for
    never."""

    watch: str = choice("perplexity", ("perplexity", "bleu"))
    """"perplexity", or "bleu" for pairs: the validation result that decides which weights are best,
    and when the rate decays or patience ends. BLEU is that of greedy translations, as `sacrebleu`
    computes it."""

    keep_every: str = field("", check_keep_every)
    """str, e.g. "1M..10M,10M..100M". Also keeps the model after each million words that were read,
    up to 10 million, and then after each 10 million up to 100 million; "1M" has no end. Each is a
    RUN folder of its own, `kept/1M`, `kept/2M` and so on in that of the run. Words are those of the
    training text between white space, whatever the tokeniser, and of all epochs; within an epoch
    their number is in proportion to the steps. Averages are kept once they are validated, except
    those of "two_tailed". May change on resuming."""

    dtype_policy: str = choice("", ("", "float32", "mixed_bfloat16", "mixed_float16"))
    """"float32", "mixed_bfloat16" or "mixed_float16"; "" for that of Keras,
    `keras.config.dtype_policy()`. A mixed policy runs matrix products in half precision during
    training and validation. Weights, gates, states, logits, losses and sums stay in float32, and so
    do the final model and its evaluation."""

    excludes = {"clipnorm": ["global_clipnorm"]}

    def check(self) -> None:
        check_lengths(self.sequence_length, self.length_deviation, self.longest_length)
        for batching, names in ONLY_WITH.items():
            for name in self.changed().keys() & names if self.batching != batching else ():
                self.refuse(name, f"needs batching={batching!r}.", "batching")
        if self.dropout_samples > 1 and self.label_smoothing:
            self.refuse("dropout_samples", "must be 1 with label smoothing.", "label_smoothing")
        if self.averaging == "asgd" and self.optimizer != "sgd":
            message = "must not be 'asgd' with an optimizer other than 'sgd'."
            way_out = " Use averaging='two_tailed' with it."
            self.refuse("averaging", message, "optimizer", way_out=way_out)
        if self.finetune != "none" and self.averaging != "asgd":
            message = "must be 'none' without averaging='asgd', which fine-tuning continues."
            way_out = " Train with optimizer='sgd' and averaging='asgd'."
            self.refuse("finetune", message, "averaging", way_out=way_out)

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """Return a fresh optimizer."""
        settings = {
            "learning_rate": float(self.learning_rate), "average": self.averaging,
            "clipnorm": self.clipnorm or None, "global_clipnorm": self.global_clipnorm or None,
        }  # fmt: skip
        if self.optimizer != "sgd":
            settings |= {"beta_1": self.beta_1, "epsilon": self.epsilon}
        if self.weight_decay or self.optimizer == "adamw":
            # For plain SGD, Keras's decay, which subtracts `rate * weight_decay * w`, is equal.
            decay = "weight_decay" if self.optimizer in ("sgd", "adamw") else "coupled_decay"
            settings[decay] = float(self.weight_decay)
        return OPTIMIZERS[self.optimizer](**settings)


class RecipeArguments(TypedDict, total=False):
    """The fields of `Recipe`, for type checkers; a test compares them."""

    optimizer: str
    learning_rate: float
    beta_1: float
    epsilon: float
    clipnorm: float
    global_clipnorm: float
    weight_decay: float
    loss_reduction: str
    batching: str
    batch_size: int
    group_by_length: bool
    tokens_per_batch: int
    sequence_length: int
    length_deviation: float
    longest_length: int
    partial_shuffle: bool
    drop_state_probability: float
    epochs: int
    hold_epochs: int
    decay: float
    plateau_decay: float
    linear_decay: bool
    square_root_decay: bool
    averaging: str
    average_interval: int
    average_from: int
    finetune: str
    finetune_epochs: int
    finetune_learning_rate: float
    label_smoothing: float
    dropout_samples: int
    on_divergence: str
    patience: int
    watch: str
    keep_every: str
    dtype_policy: str


def split_overrides(card: zoo.Card, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe]:
    """Return the builder's arguments and the recipe of `card`, both with `overrides`.

    A name that belongs to both a cell and the recipe, `epsilon`, goes to the cell if the cell
    of the model takes it, else to the recipe; so do those of parts of your own.

    Example:

    >>> from dualnet import training, zoo
    >>> card = zoo.card("lstm")
    >>> arguments, recipe = training.split_overrides(card, {"units": 8, "epochs": 3})
    >>> arguments["units"], recipe.epochs
    (8, 3)
    """
    fields = Recipe.names()
    known = [*zoo.known_arguments(card, overrides), *fields]
    overrides = {name: plain(value) for name, value in overrides.items()}
    for name in overrides.keys() - {*known}:
        lists = f"help(dualnet.builders.{card.builder}) and help(dualnet.training.Recipe)"
        way_out = did_you_mean(name, known) or f" {lists} list them."
        raise ArgumentError(
            name,
            "must be an argument of the builder or of the recipe.",
            way_out,
            **{name: overrides[name]},
        )
    of_recipe = {*fields}
    if "members" not in card.config:
        of_recipe -= part_options({**card.config, **overrides})
    settings = {key: value for key, value in overrides.items() if key in of_recipe}
    of_builder = {key: value for key, value in overrides.items() if key not in of_recipe}
    return zoo.arguments_of(card, of_builder), recipe_of({**card.recipe, **settings})


def plain(value: Any) -> Any:
    """Return a setting with numbers of Python in place of NumPy's, as files hold them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these settings, those of a card; an unknown one is named."""
    return Recipe.of(settings, requirement="must be an argument of the recipe.")
