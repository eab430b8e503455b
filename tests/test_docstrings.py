"""Every public name has a docstring with an example, and every example runs."""

import doctest
import importlib
import inspect
import pkgutil

import keras
import pytest

import dualnet

ROOMS = (
    "dualnet", "dualnet.adaptation", "dualnet.analysis", "dualnet.builders", "dualnet.cards",
    "dualnet.corpora", "dualnet.devices", "dualnet.evaluation", "dualnet.generation",
    "dualnet.layers", "dualnet.runs", "dualnet.serving", "dualnet.text", "dualnet.training",
    "dualnet.tuning", "dualnet.zoo",
)  # fmt: skip
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dualnet.__path__, "dualnet.")
    if not module.name.endswith("__main__")
)


def public_objects():
    """Return the public classes and functions by the room and name that users write."""
    homes = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                homes.setdefault(thing, f"{room}.{name}")
    return {home: thing for thing, home in homes.items()}


def names_without_example():
    parse = doctest.DocTestParser().get_examples
    return {name for name, thing in PUBLIC.items() if not parse(thing.__doc__ or "")}


PUBLIC = public_objects()
# To shrink to nothing: a new public name comes with an example.
WITHOUT_EXAMPLE: set[str] = {
    "dualnet.analysis.Rank",
    "dualnet.analysis.Shares",
    "dualnet.analysis.expert_shares",
    "dualnet.analysis.favoured_words",
    "dualnet.analysis.learning_curves",
    "dualnet.analysis.plot_expert_shares",
    "dualnet.analysis.plot_favoured_words",
    "dualnet.analysis.plot_learning_curves",
    "dualnet.analysis.plot_singular_values",
    "dualnet.analysis.rank",
    "dualnet.best_temperature",
    "dualnet.builders.LanguageModel",
    "dualnet.builders.Transfer",
    "dualnet.builders.ensemble_model",
    "dualnet.builders.language_model",
    "dualnet.builders.token_losses",
    "dualnet.builders.weight_names",
    "dualnet.corpora.Corpus",
    "dualnet.corpora.Vocabulary",
    "dualnet.corpora.load",
    "dualnet.corpora.streams",
    "dualnet.data_parallel",
    "dualnet.dynamic_evaluation",
    "dualnet.ensemble",
    "dualnet.evaluate",
    "dualnet.evaluation.Evaluation",
    "dualnet.evaluation.Score",
    "dualnet.evaluation.check_cache",
    "dualnet.evaluation.check_temperature",
    "dualnet.evaluation.check_tokens",
    "dualnet.evaluation.perplexity_of",
    "dualnet.evaluation.vocabulary_of",
    "dualnet.export",
    "dualnet.generate",
    "dualnet.gradient_statistics",
    "dualnet.layers.ActivationRegularization",
    "dualnet.layers.DOCOutput",
    "dualnet.layers.DepthGatedLSTMCell",
    "dualnet.layers.DualConnection",
    "dualnet.layers.ElmanCell",
    "dualnet.layers.EmbeddingDropout",
    "dualnet.layers.FeatureGate",
    "dualnet.layers.GRUCell",
    "dualnet.layers.IOGate",
    "dualnet.layers.LSTMCell",
    "dualnet.layers.LayerNormGRUCell",
    "dualnet.layers.LayerNormLSTMCell",
    "dualnet.layers.LockedDropout",
    "dualnet.layers.MeanOfProbabilities",
    "dualnet.layers.MixtureSoftmax",
    "dualnet.layers.MogrifierLSTMCell",
    "dualnet.layers.NeuralCache",
    "dualnet.layers.OutputProjection",
    "dualnet.layers.PastDecode",
    "dualnet.layers.PerGateLSTMCell",
    "dualnet.layers.Recurrence",
    "dualnet.layers.RecurrentHighwayCell",
    "dualnet.layers.StepDropout",
    "dualnet.layers.without_gradients",
    "dualnet.load",
    "dualnet.perplexity",
    "dualnet.runs.corpus_of_run",
    "dualnet.runs.read_card",
    "dualnet.score",
    "dualnet.train",
    "dualnet.training.Recipe",
    "dualnet.training.Run",
    "dualnet.training.batches_of",
    "dualnet.training.card_for",
    "dualnet.training.combine_runs",
    "dualnet.training.load_corpus",
    "dualnet.training.split_overrides",
    "dualnet.training.train_gate",
    "dualnet.training.versions",
    "dualnet.transfer",
    "dualnet.tuning.HyperModel",
    "dualnet.tuning.Job",
    "dualnet.tuning.SearchError",
    "dualnet.tuning.list_jobs",
    "dualnet.tuning.load_job",
    "dualnet.tuning.search",
    "dualnet.with_cache",
    "dualnet.with_gate",
}


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="outputs are TensorFlow's")
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
    assert not list(tmp_path.iterdir())  # an example leaves no files behind


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name):
    assert (PUBLIC[name].__doc__ or "").strip(), name


def test_every_public_name_has_an_example():
    missing = names_without_example()
    assert missing <= WITHOUT_EXAMPLE, "write a `>>>` example in their docstrings"
    assert missing >= WITHOUT_EXAMPLE, "remove these from WITHOUT_EXAMPLE: they have an example"


if __name__ == "__main__":  # python -m tests.test_docstrings: what belongs in WITHOUT_EXAMPLE
    print(*sorted(names_without_example()), sep="\n")
