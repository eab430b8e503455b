"""What can be asked of a model and of a text, as data: settings that check themselves, no Keras."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from dualnet import _checks
from dualnet._checks import ArgumentError, StrPath
from dualnet._fields import Settings, choice, count, field, positive
from dualnet._formats import ADDED

# --- corpora


class Dividing(Settings):
    """How a text file is divided."""

    fractions: Sequence[float] | None = field(None, nargs=3, metavar=("TRAIN", "VALID", "TEST"))
    """Shares of the lines of a text file (default: 90 5 5)."""


class ReadingCorpus(Dividing):
    """How a corpus given by name is read, see `corpora.load`; on resuming, as before."""

    tokenizer: StrPath | None = None
    """words, characters, bytes; bpe:N, unigram:N or word-piece:N, learnt from train with N tokens;
    or the path of a tokenizer.json, or of a .model of SentencePiece (default: bpe:N with an N that
    suits the text; words for a named corpus and for a text whose rare words are <unk>)."""

    documents: str | None = field(None, metavar="END")
    """What ends a document (read as <eos>): line (default), blank-line or file."""

    vocabulary_size: int | None = count(None, least=2)
    """Read the text as words, as many as this with <eos> and <unk>; rarer ones are <unk>."""

    min_count: int | None = count(None)
    """Read the text as words; those that train has less often are <unk> (default: 2; 1 for a text
    whose rare words are <unk>)."""


class ReadingCorpusArguments(TypedDict, total=False):
    """The fields of `ReadingCorpus`, for type checkers; a test compares them."""

    fractions: Sequence[float] | None
    tokenizer: StrPath | None
    documents: str | None
    vocabulary_size: int | None
    min_count: int | None


# --- scores, and static evaluation


# Logits divided by much less overflow float32.
check_temperature = _checks.number_check(
    "a finite number above 0, of at least 1e-6", lambda value: 1e-6 <= value < math.inf
)


class Scoring(Settings):
    """How texts are scored."""

    temperature: float = field(1.0, check_temperature, metavar="T")
    """float above 0. Divide the logits by it."""


class Reading(Scoring):
    """How a text is read: as a stream, or by sentence."""

    group = "how to read"

    sequence_length: int | None = count(None)
    """int. Tokens per step, and per update; default by rule. None by sentence."""

    by_sentence: bool = False
    """bool. Read each sentence from the zero state."""

    excludes = {"by_sentence": ["sequence_length"]}  # each sentence is read whole


class ReadingArguments(TypedDict, total=False):
    """The fields of `Reading`."""

    temperature: float
    sequence_length: int | None
    by_sentence: bool


def check_top_k(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a list of integers of at least 1."""
    if not isinstance(value, list | tuple):
        raise ArgumentError(name, f"must be a list of integers. Received: {name}={value!r}.")
    for k in value:
        _checks.check_count(name, k)


class Evaluating(Reading):
    """How the loss of a model on a text is computed, its weights fixed."""

    group = "how to read"

    top_k: Sequence[int] = field((), check_top_k, metavar="K", type=int, nargs="+")
    """ints, at least 1. Also compute the share of tokens that are among the k likeliest, for
    each k. One as likely as the right one counts as likelier, so that a model that cannot tell
    tokens apart scores 0. Excludes MC dropout."""

    batch_size: int = count(1)
    """int. Number of parallel streams that the text is read as: faster, but each starts from the
    zero state. Must be 1 by sentence and with a window."""

    window: int | None = count(None)
    """int, at least 1. Tokens after which the state is zeroed; by default it is carried over the
    whole text. Excludes `by_sentence`."""

    mc_dropout_samples: int = field(0, flags=["--samples"], group="dropout samples")
    """int. Number of passes with dropout whose probabilities are averaged; 0 for one pass without.
    """

    dropout_scale: float = field(1.0, _checks.check_factor, group="dropout samples")
    """float above 0, at most 1. With MC dropout, multiply the dropout rates of the model, its
    builder's arguments `..._dropout`, by it."""

    seed: int = field(0, group="dropout samples")
    """int, at least 0. Random seed of the masks, which depend on it and the other arguments alone.
    """

    sequence_length: int | None = count(None)
    """int. Tokens per step; about 2048 / `batch_size` by default, and 70 with MC dropout. None by
    sentence and with a window."""

    needs = {"mc_dropout_samples": ["dropout_scale"]}
    excludes = {
        "by_sentence": ["window", "batch_size", "sequence_length"],  # of streams
        "window": ["sequence_length", "batch_size"],
        "mc_dropout_samples": ["top_k"],  # the answers of the passes differ
    }


class EvaluatingArguments(ReadingArguments, total=False):
    """The fields of `Evaluating`."""

    top_k: Sequence[int]
    batch_size: int
    window: int | None
    mc_dropout_samples: int
    dropout_scale: float
    seed: int


# --- weights that learn at test time

# Default settings of the rules of dynamic evaluation, where the search for a learning rate begins.
# The step sizes of "nadam" (within the paper's range) and "sgd" are our choice, tuned on PTB's
# validation text with 200 units; those of "rms" are the released defaults of Krause et al.
RULES: dict[str, dict[str, float]] = {
    "nadam": {"learning_rate": 3e-5, "beta_1": 0.0, "sequence_length": 50},
    "sgd": {"learning_rate": 0.1, "decay": 0.0, "sequence_length": 20},
    "rms": {"learning_rate": 5e-5, "decay": 0.002, "epsilon": 2e-5, "sequence_length": 5},
}


AUTO = "auto"


def check_rate_or_auto(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a positive number or "auto"."""
    if not isinstance(value, str):
        _checks.check_positive(name, value)
    elif value != AUTO:
        raise ArgumentError(name, 'must be a number above 0, or "auto".', **{name: value})


def check_weights(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a text, or a list of at least one."""
    items = [value] if isinstance(value, str) else value
    are_names = isinstance(items, list | tuple) and all(isinstance(x, str) and x for x in items)
    if not are_names or not items:
        raise ArgumentError(
            name,
            "must name weights that learn, such as 'connection', or be a list of such names.",
            **{name: value},
        )


class AdaptationRule(Settings):
    """The rule by which weights learn from a text."""

    group = "learning while reading"

    rule: str | None = choice(None, RULES)
    """"nadam", "sgd" or "rms". By default the rule and settings of a shipped model's own figures,
    and "nadam" for any other."""

    learning_rate: float | str | None = field(None, check_rate_or_auto, hidden=True)
    """float above 0, or "auto": found on validation text, see the guide, and kept in the RUN. By
    default "auto" for the model of a RUN whose text is at hand; for any other that of the rule, see
    `RULES`."""

    decay: float | None = field(None, hidden=True)
    """float, at least 0. Pull to the initial weights ("sgd", "rms")."""

    epsilon: float | None = positive(None, hidden=True)
    """float above 0. Added to the divisor of the gradient ("nadam", "rms"). Of "nadam" 1e-7 by
    default, as in Keras; 1e-3, at a higher rate, gained more here."""

    beta_1: float | None = field(None, _checks.check_fraction, hidden=True)
    """float, at least 0 and below 1. Momentum ("nadam"), 0 by default."""

    clipnorm: float | None = positive(None, hidden=True)
    """float above 0. Clip each weight's gradient to this norm."""

    cache: int | None = count(None, least=0, flags=["--ngrams"])
    """int. Also remember so many of the last tokens, in a cache of n-grams (`NGramCache`): what
    followed the same tokens before is likelier, after it was read once. None by default."""

    def check(self) -> None:
        super().check()
        if self.rule in RULES:  # else it depends on the model; of a command, "published"
            self.of_rule()

    def which(self) -> str | Sequence[str] | None:
        """Return the weights that learn, in the form of `adapt` of `dynamic_evaluation`."""
        return None

    def of_rule(self) -> dict[str, Any]:
        """Return the settings of the rule: its defaults, and the values that were given.

        Example:

        >>> from dualnet.requests import AdaptationRule
        >>> AdaptationRule(rule="sgd", decay=0.1).of_rule()
        {'learning_rate': 0.1, 'decay': 0.1, 'sequence_length': 20}
        """
        rule = self.rule or "nadam"
        known = {*RULES[rule], "clipnorm", *["epsilon"] * (rule == "nadam")}
        settings = dict(RULES[rule])
        for name in ("learning_rate", "sequence_length", "decay", "epsilon", "beta_1", "clipnorm"):
            value = getattr(self, name, None)
            if value is not None and name not in known:
                self.refuse(
                    name, f"is not a setting of the rule {rule!r}, which takes {sorted(known)}."
                )
            if value is not None and value != AUTO:  # which begins at the default
                settings[name] = value
        settings["learning_rate"] = float(settings["learning_rate"])  # Keras takes no int
        return settings


class AdaptationRuleArguments(TypedDict, total=False):
    """The fields of `AdaptationRule`."""

    rule: str | None
    learning_rate: float | str | None
    decay: float | None
    epsilon: float | None
    beta_1: float | None
    clipnorm: float | None
    cache: int | None


class DynamicEvaluating(Reading, AdaptationRule):
    """How the loss of a model on a text is computed while its weights learn from it."""

    adapt: str | Sequence[str] | None = field(
        None,
        check_weights,
        flags=["--adapt-weights"],
        nargs="+",
        metavar="WEIGHTS",
        group="learning while reading",
    )
    """str or list of str. Which weights learn: "all" (default); a station, "connection",
    "recurrence", "output", "embedding"; names or patterns of `weight_names`, such as
    "recurrence_1/*"; "output_bias", added to the logits; "matrix" or "matrix:RANK", the adaptation
    matrix on what the output reads; "recurrent_matrix", likewise of a rank, inside the last
    recurrent layer; "output_matrix:RANK", a difference of the output matrix. Several are given as a
    list."""

    def which(self) -> str | Sequence[str] | None:
        return self.adapt


class DynamicEvaluatingArguments(AdaptationRuleArguments, ReadingArguments, total=False):
    """The fields of `DynamicEvaluating`."""

    adapt: str | Sequence[str] | None


class LearnerRule(AdaptationRule):
    """How a `Learner` learns from what it reads."""

    sequence_length: int | None = count(None)
    """int. Tokens per update; default by rule."""

    rule: str | None = choice(None, RULES)
    """"nadam", "sgd" or "rms". By default that of a shipped model's own figures, and "sgd" for any
    other."""


class LearnerRuleArguments(AdaptationRuleArguments, total=False):
    """The fields of `LearnerRule`."""

    sequence_length: int | None


class AdaptingTexts(AdaptationRule):
    """How weights learn from the texts that are read, if they do."""

    group = "learning while reading"

    adapt: bool = False
    """bool. Learn from each text, in one step, after it is scored, as in `dynamic_evaluation` by
    sentence. The model itself does not change."""

    adapt_weights: str | Sequence[str] | None = field(
        None, check_weights, nargs="+", metavar="WEIGHTS"
    )
    """str or list of str. Which weights learn, as `adapt` of `dynamic_evaluation`: "all" (default),
    "connection", "matrix:16" and others."""

    needs = {"adapt": [*AdaptationRule.names(), "sequence_length", "adapt_weights"]}

    def which(self) -> str | Sequence[str] | None:
        return self.adapt_weights

    def check_adapts(self, **values: object) -> None:
        """Raise `ArgumentError` for a value that needs `adapt`, if that is False."""
        for name, value in values.items():
            if value is not None and not self.adapt:
                raise ArgumentError(name, "needs adapt=True.", **{name: value})


class AdaptingTextsArguments(AdaptationRuleArguments, total=False):
    """The fields of `AdaptingTexts`."""

    adapt: bool
    adapt_weights: str | Sequence[str] | None


class Surprising(Scoring, AdaptingTexts):
    """How the surprisal of texts is computed."""

    entropy: bool = False
    """bool. Add the entropy, in bits, of the distribution that each token, or the first token of a
    word, was predicted from."""

    words: bool = False
    """bool. Make a record for each word, shown as the text has it, instead of each token."""

    split_punctuation: bool = False
    """bool. With `words`, make the punctuation at the beginning and at the end of a word a record
    of its own."""

    bow_correction: bool = False
    """bool. With `words`, add the surprisal of the end of the word, and subtract that of the end
    of the word before. Tokens hold the space before their word, so that their sum alone stands
    for all words that begin with them."""

    needs = {"words": ["split_punctuation", "bow_correction"]}
    excludes = {"bow_correction": ["split_punctuation"]}


class SurprisingArguments(AdaptingTextsArguments, total=False):
    """The fields of `Surprising`."""

    temperature: float
    entropy: bool
    words: bool
    split_punctuation: bool
    bow_correction: bool


class Looking(Scoring, AdaptingTexts):
    """How the models of a page read its text."""

    group = "learning while reading"

    sequence_length: int | None = count(None, hidden=True)
    """int. Tokens per update; default by rule."""

    adapt: bool = False
    """bool. Read the text with each model a second time, in which it learns from each segment after
    it is scored, as in `dualnet.dynamic_evaluation`. The model itself does not change."""


class LookingArguments(AdaptingTextsArguments, total=False):
    """The fields of `Looking`."""

    temperature: float
    sequence_length: int | None


MISSING = ("zero", "lowest")


class Rescoring(AdaptingTexts):
    """How n-best lists are read."""

    group = "state and learning"

    carry: bool = False
    """bool. Read each list in the state in which the best hypothesis of the list before left the
    model."""

    missing: str = choice("zero", MISSING, group="")
    """"zero" or "lowest". What a feature counts in a hypothesis that lacks it, while others of its
    list have it: 0, which is more than any log-probability, or the lowest number of the list."""

    adapt: bool = False
    """bool. Learn from the best hypothesis of a list, in one step, before scoring the next list.
    The model itself does not change."""


class RescoringArguments(AdaptingTextsArguments, total=False):
    """The fields of `Rescoring`."""

    carry: bool
    missing: str


# --- generated text: drawn, or the likeliest


class Beaming(Settings):
    """How a beam search finds the likeliest texts."""

    group = "beam search"

    beam: int | None = count(None)
    """int, from 1 to the size of the vocabulary. Take the likeliest text that a beam search finds
    with so many hypotheses; 1 is greedy."""

    n_best: int | None = count(None, flags=["--nbest", "--n-best"])
    """int, from 1 to `beam`. Return so many of the likeliest texts."""

    length_normalization: float = field(0.0, metavar="A")
    """float, at least 0. Rank texts by log-probability divided by this power of their length, which
    counts `<eos>`. At 0, short ones win."""

    def check(self) -> None:
        super().check()
        if self.beam is not None and self.n_best is not None and self.n_best > self.beam:
            self.refuse("n_best", "must be at most beam.", "beam", way_out=" Widen the beam.")

    def check_width(self, words: int) -> None:
        """Raise `ArgumentError` if the beam is wider than the vocabulary of a model."""
        if self.beam is not None and self.beam > words:
            self.refuse(
                "beam", f"must be at most the number of tokens that the model knows, {words}."
            )


class Drawing(Beaming):
    """How prompts are continued: by words that are drawn, or with a beam by the likeliest."""

    max_tokens: int = count(50)
    """int, at least 1. Tokens to generate for each prompt."""

    temperature: float = field(1.0, metavar="T")
    """float, at least 0. Divide the logits by it: low values give likelier text. 0 is greedy: it
    takes the likeliest token; ties go to the lower id."""

    top_k: int | None = count(None)
    """int, at least 1. Draw from so many of the likeliest tokens (default: all)."""

    top_p: float | None = field(None, _checks.check_factor, metavar="P")
    """float above 0, at most 1. Draw from the fewest tokens whose probabilities reach it."""

    min_p: float | None = field(None, _checks.check_factor, metavar="P")
    """float above 0, at most 1. Draw from the tokens that are at least so likely, as a share of the
    likeliest."""

    repetition_penalty: float = positive(1.0, metavar="R")
    """float above 0. Divide the logits of tokens that the text has already by it, or multiply them
    if they are below 0: above 1 against repetition."""

    seed: int | None = None
    """int, at least 0. Random seed: equal ones give equal texts (default: a new one each time)."""

    stop_at_eos: bool = False
    """bool. End a text before the first `<eos>` drawn. With `beam`, it always does."""

    allow_unknown: bool = False
    """bool. Also take `<unk>`, like any other token, as in papers that take the argmax of all
    words."""

    beam: int | None = count(None, group="beam search")
    """int, from 1 to the size of the vocabulary. Take the likeliest text that a beam search finds
    with so many hypotheses; 1 is greedy. Excludes `temperature`, `top_k`, `top_p`, `min_p`,
    `repetition_penalty` and `seed`."""

    needs = {"beam": ["n_best", "length_normalization"]}
    # A beam draws nothing.
    excludes = {"beam": ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"]}


class DrawingArguments(TypedDict, total=False):
    """The fields of `Drawing` but `n_best`."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int | None
    stop_at_eos: bool
    allow_unknown: bool
    beam: int | None
    length_normalization: float


BEAM = 8  # hypotheses of a word


class Completing(Settings):
    """How the word that is being typed is completed."""

    k: int = count(3)
    """int. How many words to offer, from 1 to 8."""

    words: Sequence[str] | None = field(None, metavar="WORD")
    """str or list of str. Further words that may be put together of several tokens."""

    stop_words: Sequence[str] | None = field(None, metavar="WORD")
    """str or list of str. Words that are never offered, in small or capital letters."""

    def check(self) -> None:
        if self.k > BEAM:
            self.refuse("k", f"must be at most {BEAM}.")


class CompletingArguments(TypedDict, total=False):
    """The fields of `Completing`."""

    k: int
    words: Sequence[str] | None
    stop_words: Sequence[str] | None


class Translating(Beaming):
    """How texts are translated."""

    beam: int = count(5)
    """int, from 1 to the number of target words. Hypotheses of the beam search; 1 is greedy."""

    n_best: int = count(1, flags=["--nbest", "--n-best"])
    """int, from 1 to `beam`. Return so many of the likeliest translations of each text."""

    length_normalization: float = field(1.0, metavar="A")
    """float, at least 0. Rank translations by log-probability divided by this power of their
    length."""

    max_tokens: int | None = count(None)
    """int, at least 1. Tokens of a translation at most, `<eos>` included. By default twice those of
    its source, and 10."""

    allow_unknown: bool = False
    """bool. Also take `<unk>`, like any other token."""


class TranslatingArguments(TypedDict, total=False):
    """The fields of `Translating` but `n_best`."""

    beam: int
    length_normalization: float
    max_tokens: int | None
    allow_unknown: bool


class TranslationsArguments(TranslatingArguments, total=False):
    """The fields of `Translating`."""

    n_best: int


# --- export

# Of the formats of export, "" for a folder; of those of one suffix, the last is the default.
SUFFIXES = {name: format.suffix for name, format in ADDED.items()}
SUFFIXES |= {"saved_model": "", "onnx": ".onnx", "litert": ".tflite"}
FORMATS = tuple(SUFFIXES)
# Suffixes of other programs' files, which no folder is likely to have.
FOREIGN = r"\.(bin|ckpt|gguf|h5|keras|npz|ort|pb|pkl|pt|pth|safetensors|zip)"


class Exporting(Settings):
    """What a model is exported as."""

    group = "learning while reading"

    format: str | None = choice(None, FORMATS, group="")
    """"saved_model" (a TensorFlow SavedModel), "onnx", "litert", "sherpa-onnx" or "transformers"
    (Hugging Face's). By default "onnx" if the path ends in .onnx, "litert" if in .tflite, else
    "saved_model"."""

    max_tokens: int = count(1000, group="")
    """int, at least 1. The most tokens that a request to `generate_text` or `translate` may ask
    for."""

    tokens: StrPath | None = field(None, metavar="FILE", group="")
    """The file tokens.txt of the recogniser, for "sherpa-onnx" alone."""

    quantize: str | None = choice(None, ("int8",), group="")
    """"int8": the matrices of a file for "onnx" or "litert" are bytes, a quarter of the size, and
    its products faster."""

    dtype: str | None = choice(None, ("float16",), group="")
    """"float16": the weights of a file for "litert" are half the size; it computes in float32."""

    check_file: StrPath | None = field(None, flags=["--check"], metavar="FILE", group="")
    """The text on which the file for "onnx" or "litert" is measured, up to 10,000 tokens. With
    `quantize` or `dtype`, by default the validation text of the RUN, where it is at hand."""

    learn: str | Sequence[str] | None = field(None, check_weights, nargs="+", metavar="WEIGHTS")
    """str or list of str. Which weights requests to a SavedModel, or to a file for "onnx" or
    "litert", teach, for each row of a batch: "connection", "matrix:16", "output_bias" or several,
    as `adapt` of `dualnet.Learner`. The rule is "sgd"."""

    learning_rate: float | None = positive(None)
    """float above 0. The default of a request; by default that of a shipped model's own figures, or
    of the rule, see `RULES`."""

    decay: float | None = None
    """float, at least 0. The default pull to the model's weights."""

    clipnorm: float | None = positive(None)
    """float above 0. The default norm that each weight's gradient is clipped to."""

    sequence_length: int | None = count(None)
    """int. Tokens per step of `learn_text`, and of `learn` for "litert"."""

    cache: int | None = count(None, least=0, flags=["--ngrams"])
    """int. For "onnx" and "litert": how many of the last tokens a reader remembers, whose n-grams
    the client counts; 4,000 by default, as of a new `dualnet.Learner`."""

    needs = {"learn": ["learning_rate", "decay", "clipnorm", "sequence_length", "cache"]}
    excludes = {"quantize": ["dtype", "learn"]}  # gradients are too fine for bytes

    def check(self) -> None:
        if (self.tokens is None) == (self.format == "sherpa-onnx"):
            required = "must be the file tokens.txt of the recogniser for format='sherpa-onnx'"
            self.refuse("tokens", f"{required}, and None for other formats.", "format")

        if self.tokens is not None and not Path(self.tokens).is_file():
            raise FileNotFoundError(
                f"`tokens` must name an existing file. Received: {str(self.tokens)!r}."
            )


class ExportingArguments(TypedDict, total=False):
    """The fields of `Exporting`."""

    format: str | None
    max_tokens: int
    tokens: StrPath | None
    quantize: str | None
    dtype: str | None
    check_file: StrPath | None
    learn: str | Sequence[str] | None
    learning_rate: float | None
    decay: float | None
    clipnorm: float | None
    sequence_length: int | None
    cache: int | None


def format_of(path: StrPath) -> str:
    """Return the format that `export` takes from the suffix of `path`.

    Raises:
        ValueError: for a suffix of other programs' files, or one that is almost ours.

    Example:
        >>> from dualnet import serving
        >>> serving.format_of("model.onnx"), serving.format_of("models/dual/1")
        ('onnx', 'saved_model')
    """
    formats = {suffix: format for format, suffix in SUFFIXES.items()}
    suffix = Path(path).suffix.lower()
    if suffix in formats:
        return formats[suffix]
    if re.fullmatch(FOREIGN, suffix) or difflib.get_close_matches(suffix, formats, cutoff=0.8):
        raise ArgumentError(
            "path",
            f"must end in .onnx or .tflite, or be a folder: the formats are {', '.join(FORMATS)}.",
            " For a folder of that name, give the format.",
            path=str(path),
        )
    return "saved_model"
