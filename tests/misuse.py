"""Calls public functions, classes and methods with one bad argument at a time."""

import dataclasses
import inspect
import math
import warnings
from collections import Counter
from pathlib import Path

import keras
import numpy as np

import dualnet
from dualnet import (
    analysis,
    builders,
    corpora,
    layers,
    learners,
    looking,
    rescoring,
    text,
    training,
    zoo,
)
from dualnet.tuning import load_job
from tests.checks import documented_names, resolve

FEW = [None, "", b"x", [None], {}, -1, math.nan, 10**30, object(), "no/\udcff", "no\0"]
MORE = [
    True, "x", [], ["x"], (), {"x": None}, 0, 1.5, math.inf, -(10**30), 1j, lambda: None, iter(()),
    Path("no/where"), "x" * 300, np.zeros((2, 3)), np.zeros((2, 2, 2), int), np.array(["x"]),
    np.array([]), np.array([-1, 10**9]), np.int64(3), np.float32("nan"), range(3), {1, 2}, type,
    ...,
]  # fmt: skip
OF_TOKENISERS = ["decode", "encode", "encode_with_offsets", "id", "word", "save"]
OF_MODELS = ["advance", "initial_state", "hidden_states", "reset_state"]
METHODS = {
    "corpora.Corpus": ["batches", "sentence_batches", "split"],
    "corpora.PairCorpus": ["batches", "split"],
    "corpora.PairSplit": ["source", "target"],
    "builders.LanguageModel": OF_MODELS,
    "builders.TranslationModel": ["encode", "advance", "initial_state"],
    "training.Recipe": ["of", "fields_of", "given"],
    "tuning.Job": ["drawn", "settings", "with_settings"],
    "looking.Page": ["save"],
    "rescoring.Hypothesis": ["total"],
    "rescoring.Bleu": ["statistics", "value", "values"],
    "rescoring.Wer": ["statistics", "value", "values"],
    "rescoring.BracketF1": ["statistics", "value"],
    "adaptation.DynamicEvaluation": ["plot"],
    "learners.Learner": ["read", "score", "save", "load"],
    "text.Vocabulary": [*OF_TOKENISERS, "load", "from_counts"],
    "text.ByteTokenizer": OF_TOKENISERS,
    "text.LibraryTokenizer": OF_TOKENISERS,
}
# Tensors, of which the backend says what is wrong.
TENSORS = {
    ("builders.token_losses", "logits"), ("builders.token_losses", "targets"),
    ("layers.product", "vector"), ("layers.product", "kernel"), ("layers.product", "mask"),
    ("generation.beam_search", "states"),
}  # fmt: skip
# Made by functions, not by users, of parts that are no values.
LEFT_OUT = {"LanguageModel", "TranslationModel", "HyperModel", "Tokenizer", "DualnetLM", "Scorer"}
LEFT_OUT |= {"SentencePieceTokenizer"}  # of a file that a package trains


NEW = object()  # a path that nothing has
TINY = {"units": 4, "batch_size": 2, "epochs": 1, "progress": False}
# Of what would take long with its defaults. Those that train take settings of the recipe.
SMALL = {
    "generation.generate": {"max_tokens": 2},
    "training.train": TINY, "training.train_seeds": TINY,
    "training.train_gate": {"batch_size": 2, "epochs": 1, "progress": False},
}  # fmt: skip


class Workshop:
    """Good values for the arguments of what is public, and a folder with files."""

    def __init__(self, folder):
        self.folder = folder = Path(folder)
        lines = "a b c a\nb c\nc a b\n" * 4
        for name in ("text", "pairs"):
            (folder / name).mkdir()
        for split in corpora.SPLITS:
            (folder / "text" / f"{split}.txt").write_text(lines.replace("c", "<unk>"))
            for side in ("en", "de"):
                (folder / "pairs" / f"{split}.{side}").write_text(lines)
        (folder / "list").write_text("0 ||| a b ||| tm= -1 ||| -1\n0 ||| a ||| tm= -2 ||| -2\n")
        (folder / "weights.toml").write_text("[weights]\ntm = 1.0\n")
        (folder / "trees").write_text("(S (NN a) (NN b))\n")
        (folder / "tree-list").write_text("1\n-1.0 (S (NN a) (NN b))\n")
        (folder / "tokens.txt").write_text("<blk> 0\n<sos/eos> 1\n<unk> 2\na 3\nb 4\nc 5\n")
        self.corpus = corpora.load(folder / "text")
        sides = {"source": "en", "target": "de", "tokenizer": "words"}
        self.pairs = corpora.load_pairs(folder / "pairs", **sides)
        self.vocabulary = self.corpus.vocabulary
        self.vocabulary.save(folder / "words.txt")
        self.characters = text.train_tokenizer(lines.splitlines(), "characters")
        self.characters.save(folder / "tokenizer.json")
        self.model = self._with_words(zoo.build("lstm", vocabulary_size=4, units=4))
        self.model.compile(optimizer="sgd")
        self.mixture = self._with_words(builders.language_model(4, units=4, experts=2))
        self.gated = self._with_words(builders.with_gate(builders.language_model(4, units=4), 3))
        sizes = {"vocabulary_size": 4, "source_vocabulary_size": 4, "units": 4}
        self.translator = self._with_words(builders.encoder_decoder(**sizes))
        self.translator.source_vocabulary = self.vocabulary
        self.run = folder / "RUN"
        dualnet.train("lstm", self.corpus, output=self.run, **TINY)
        self.list = next(rescoring.read_nbest(folder / "list"))
        self.tokens = np.arange(60, dtype="int32") % 4
        self.shares = analysis.expert_shares(self.mixture, self.tokens[:9])
        self.rank = analysis.rank(self.model, self.tokens)
        self.dynamic = dualnet.dynamic_evaluation(self.model, self.tokens)
        self.job = load_job("doc_experts")
        self.made = 0

    def _with_words(self, model):
        model.vocabulary = self.vocabulary
        return model

    def new(self):
        """Return the path of a file or folder that does not exist."""
        self.made += 1
        return self.folder / f"new-{self.made}"

    # --- good values

    def arguments(self, name):
        """Return good values for the arguments that `name` of a room needs."""
        tree = rescoring.parse_tree("(S (NN a))")
        sums = {"Bleu": np.ones(10), "Wer": np.ones(2), "BracketF1": np.ones(3)}
        batch = np.zeros((2, 3), "int32")
        by_function = {
            "analysis.expert_shares": {"model": self.mixture},
            "analysis.favoured_words": {"model": self.gated, "words": "a"},
            "analysis.hidden_states": {"model": self.model, "text": "a"},
            "analysis.learning_curves": {"runs": {"x": self.run}},
            "analysis.plot_learning_curves": {"runs": {"x": self.run}},
            "analysis.plot_expert_shares": {"shares": self.shares},
            "analysis.plot_favoured_words": {"found": {"a": [("b", 1.0)]}},
            "analysis.plot_singular_values": {"ranks": {"x": self.rank}},
            "builders.assign": {"arrays": {"x": 1}},
            "builders.ensemble": {"models": [self.model, self.model]},
            "builders.transfer": {"source": self.model, "target": self.model},
            "builders.encoder_decoder": {"source_vocabulary_size": 4, "units": 4},
            "builders.ensemble_model": {
                "members": [{"builder": "language_model",
                             "arguments": {"vocabulary_size": 4, "units": 4}}] * 2,
            },
            "builders.language_model": {"units": 4},
            "builders.token_losses": {"logits": np.zeros((2, 3, 4)), "targets": batch},
            "corpora.load": {"name_or_folder": self.folder / "text"},
            "corpora.load_pairs": {"folder": self.folder / "pairs", "source": "en", "target": "de"},
            "corpora.streams": {"batch_size": 2},
            "evaluation.check_causal": {"scorer": lambda ids: np.zeros(len(ids))},
            "evaluation.comparable": {"ids": self.tokens, "total_nats": 1.0},
            "evaluation.minimal_pairs": {
                "pairs": [{"sentence_good": "a b", "sentence_bad": "b a"}]
            },
            "generation.beam_search": {
                "step": lambda tokens, states: (np.zeros((len(tokens), 4)) - 1.6, states),
                "states": [], "first_ids": [0], "beam": 2, "max_tokens": 2, "eos_id": 1,
            },
            "builders.core_model": {"core": self.model.core},
            "generation.ensemble_step": {"steps": [lambda tokens, states: (tokens, states)]},
            "generation.alignments": {"model": self.translator},
            "generation.translate": {"model": self.translator},
            "generation.translations": {"model": self.translator},
            "learners.read_many": {"texts": ["a b"]},
            "looking.look": {"models": self.model, "text": "a b"},
            "rescoring.rescore": {"models": self.model},
            "rescoring.parse_tree": {"text": "(S (NN a))"},
            "rescoring.read_nbest": {"path": self.folder / "list"},
            "rescoring.read_trees": {"path": self.folder / "trees"},
            "rescoring.read_tree_nbest": {"path": self.folder / "tree-list"},
            "rescoring.load_weights": {"path": self.folder / "weights.toml"},
            "rescoring.Tree": {"label": "S", "children": ("a",)},
            "rescoring.Hypothesis": {"text": "a"},
            "rescoring.NBest": {"hypotheses": self.list.hypotheses},
            "runs.load": {"path": self.run}, "runs.read_card": {"folder": self.run},
            "runs.corpus_of_run": {"folder": self.run},
            "serving.token_map": {"tokens": self.folder / "tokens.txt"},
            "text.from_config": {"config": self.vocabulary.get_config()},
            "text.load_tokenizer": {"path": self.folder / "tokenizer.json"},
            "text.LibraryTokenizer": {"json": self.characters.get_config()["json"]},
            "text.Vocabulary": {"words": ("a", "<eos>")},
            "text.Vocabulary.load": {"path": self.folder / "words.txt"},
            "text.Vocabulary.from_counts": {"counts": Counter(a=2, b=1)},
            "training.train_gate": {"run": self.run},
            "training.combine_runs": {"runs": [self.run, self.run]},
            "training.train_seeds": {"seeds": [1]},
            "training.load_corpus": {"corpus": "python-reference", "source": None},
            "tuning.Job": {"name": "x"}, "tuning.load_job": {"name": "doc_experts"},
            "tuning.Job.of": {"arguments": {"name": "x"}},
            "cards.Card": {"builder": "language_model", "config": {}, "recipe": {}},
            "layers.AdditiveAttentionCell": {"cells": [layers.LSTMCell(4)]},
            "layers.GeneralAttentionCell": {"cells": [layers.LSTMCell(4)]},
            "layers.DOCOutput": {"experts": [1, 1]}, "layers.MixtureSoftmax": {"experts": 2},
            "layers.product": {"vector": np.ones((2, 3)), "kernel": np.ones((3, 4))},
            "rescoring.Candidate": {"score": -1.0},
            "layers.FirstState": {"sizes": [4]}, "layers.NeuralCache": {"size": 3},
            "layers.OutputProjection": {"vocabulary_size": 4},
            "layers.PastDecode": {"tied_to": keras.layers.Embedding(4, 4)},
            "layers.Recurrence": {"cell": layers.LSTMCell(4)},
            "LanguageModel.advance": {"tokens": batch, "state": self.model.initial_state(2)},
            "LanguageModel.hidden_states": {"tokens": batch},
            "TranslationModel.advance": {
                "tokens": batch, "state": self.translator.encode(batch)
            },
            "TranslationModel.encode": {"source": batch},
            "PairCorpus.batches": {"batch_size": 2}, "Vocabulary.decode": {"ids": [0, 1]},
            "Recipe.of": {"arguments": {}}, "Recipe.fields_of": {"arguments": {}},
            "Recipe.given": {"names": ["epochs"]},
        }  # fmt: skip
        by_name = {
            "model": self.model, "models": [self.model], "tokens": self.tokens, "texts": "a b",
            "text": "a b", "words": ["a", "b"], "prompt": "a", "path": NEW,
            "output": self.folder / "text", "corpus": self.corpus, "name": "lstm", "split": "valid",
            "batch_size": 2, "sequence_length": 3, "vocabulary_size": 4, "units": 4,
            "alignment_units": 4, "latent_units": 4, "rate": 0.5, "factor": 0.5, "ids": [0, 1],
            "word": "a", "id": 1, "index": 0, "tokenizer": self.vocabulary, "nbest": [self.list],
            "lists": [self.list], "references": ["a b"], "hypotheses": ["a b"],
            "weights": {"tm": 1.0}, "tree": tree, "ranks": {"x": self.rank},
            "hypothesis": "(S (NN a))",
            "reference": "(S (NN a))", "sums": sums.get(name.split(".")[1]), "source": "a",
            "recipe": training.Recipe(batch_size=2), "card": zoo.card("lstm"), "overrides": {},
            "learners": [learners.Learner(self.model, "output_bias")],
            "argument": "x", "job": self.job, "arguments": {"name": "x"}, "values": {}, "names": [],
        }  # fmt: skip
        return by_name | by_function.get(name, {}) | by_function.get(name.split(".", 1)[1], {})

    def called(self, name):
        """Return what `name`, of a room or of a class of one, calls."""
        owner, _, last = name.rpartition(".")
        if owner not in METHODS:
            return resolve(f"dualnet.{name}")
        made = {
            "adaptation.DynamicEvaluation": self.dynamic, "corpora.Corpus": self.corpus,
            "corpora.PairCorpus": self.pairs, "corpora.PairSplit": self.pairs.train,
            "builders.LanguageModel": self.model, "builders.TranslationModel": self.translator,
            "text.Vocabulary": self.vocabulary, "text.LibraryTokenizer": self.characters,
            "tuning.Job": self.job, "looking.Page": looking.Page("", [], 1),
            "rescoring.Hypothesis": self.list.best,
            "learners.Learner": learners.Learner(self.model, "output_bias"),
        }  # fmt: skip
        thing = made[owner] if owner in made else resolve(f"dualnet.{owner}")()
        return getattr(thing, last)

    def misuse(self, name, values):
        """Yield a line for each error of `name` that does not name the bad argument."""
        function, good = self.called(name), self.arguments(name)
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for parameter in named:
            # A default is no bad value, and a bad function fails when it is called.
            is_function = "Callable" in str(parameter.annotation)
            bad = [
                value
                for value in ([] if (name, parameter.name) in TENSORS else values)
                if value is not parameter.default and not (is_function and callable(value))
            ]
            for value in bad:
                if good["path"] is NEW:
                    good = good | {"path": self.new()}
                given = {p.name: good[p.name] for p in named if p.default is p.empty}
                try:
                    warnings.simplefilter("ignore")  # of plots of next to nothing
                    function(**{**SMALL.get(name, {}), **given, parameter.name: value})
                except Exception as error:
                    if not names(error, parameter.name, value):
                        raised = f"{type(error).__name__}: {str(error)[:120]!r}"
                        yield f"{name}({parameter.name}={str(value)[:20]!a}): {raised}"


def names(error, argument, value):
    """Return whether `error` says which argument is bad, or which path."""
    if not isinstance(error, (ValueError, OSError)) or isinstance(error, UnicodeError):
        return False
    is_path = isinstance(value, (str, Path)) and isinstance(error, OSError)
    said = argument in str(error) or (is_path and repr(str(value))[1:-1] in str(error))
    # Training ends there: its folder, which holds files, is claimed once all else is checked.
    return said or isinstance(error, (dualnet.ArgumentError, FileExistsError))


def public_names():
    """Return the names on the pages of `docs/api`, and the methods of their classes."""
    found = [f"{owner}.{method}" for owner, methods in METHODS.items() for method in methods]
    for name in documented_names():
        if name.rpartition(".")[2] not in LEFT_OUT:
            thing = resolve(name)
            is_result = dataclasses.is_dataclass(thing) and not hasattr(thing, "__post_init__")
            is_error = isinstance(thing, type) and issubclass(thing, Exception)
            if not is_result and not is_error:
                found.append(name.removeprefix("dualnet."))
    return found
