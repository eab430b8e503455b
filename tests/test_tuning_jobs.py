import dataclasses
import random
import tomllib
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet import cards, training, tuning, zoo
from dualnet.builders.functional import language_model
from dualnet.requests import DynamicEvaluating
from dualnet.tuning.job import Job, Parameter, decided, parse_count
from dualnet.tuning.search_run import _check as check_job
from tests.checks import once
from tests.searches import declared, draws, objective

pytestmark = once

JOBS = tuning.list_jobs()

OWN = """
model = "dual_mdlstm"
tuner = "bayesian"
max_trials = 7
max_hours = 2
ours = ["space.rank"]

[tuner_options]
beta = 2.0

[fixed]
tied = true
epochs = 3

[space]
rank = { values = [0, 50], when = { rounds = [2, 4] } }
mogrifier_dropout = { min_value = 0.0, max_value = 0.2, when = { rank = [50] } }
rounds = { min_value = 0, max_value = 6, step = 2 }
connection = ["plain", "dual"]
dual_l2 = { values = [0, 1e-5], when = { connection = ["dual"], rounds = [0] } }
dual_units = { values = [4, 6], when = { connection = ["dual"], tied = [false] } }
learning_rate = { min_value = 1e-6, max_value = 1e-3, sampling = "log" }
output_bias = [true, false]
recurrent_units = [850, [400, 850]]
batch_size = { min_value = 2, max_value = 32, step = 2, sampling = "log" }
output_dropout = { min_value = 0.3, max_value = 0.6, step = 0.1 }
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="own.toml"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return str(path)

    return write


@pytest.fixture
def own(write):
    return tuning.load_job(write(OWN))


def space_of(job):
    return {parameter.name: parameter for parameter in job.space}


def check_drawn(job, values):
    """Assert that `values` decode to what the file of `job` allows, its conditions kept."""
    settings, drawn = job.settings(values), job.drawn(values)
    assert settings.items() >= {**job.fixed, **drawn}.items()
    for parameter in job.written:
        active = all(
            parent in settings and settings[parent] in allowed
            for parent, allowed in parameter.when.items()
        )
        assert (parameter.name in settings) == active
        if active and parameter.values:
            assert settings[parameter.name] in parameter.values
            assert type(settings[parameter.name]) in map(type, parameter.values)
        elif active:
            assert type(settings[parameter.name]) is type(parameter.min_value)
            assert parameter.min_value <= settings[parameter.name] <= parameter.max_value
    assert [name for name in space_of(job) if name in drawn] == list(drawn)
    return settings


def test_the_published_searches_have_jobs():
    assert "dual_table1" in JOBS
    assert tuning.list_jobs("doc_*") == [name for name in JOBS if name.startswith("doc_")]
    assert "space.latent_dropout" not in tuning.load_job("doc_latent_dropout").ours


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_its_source_and_every_trial_of_it_can_be_run(name):
    job = tuning.load_job(name)
    assert (job.name, job.file) == (name, "")
    assert job.paper and job.table and job.note
    check_job(job)
    assert {parameter.name for parameter in declared(job).space} == {*space_of(job)}
    for values in draws(job, 20):
        settings = check_drawn(job, values)
        if job.kind == "training":
            training.split_overrides(zoo.card(job.model), settings)
        elif job.kind == "gate":
            assert settings == {"gate_units": values["gate_units"]}
        elif settings["evaluation"] == "dynamic":
            del settings["evaluation"]
            DynamicEvaluating(**settings)
        else:
            assert set(settings) == {"evaluation", "temperature", "window"}


def test_table_1_of_the_dual_paper_is_there_to_the_letter():
    job = tuning.load_job("dual_table1")
    space = {parameter.name: parameter for parameter in job.written}
    values = {name: list(parameter.values) for name, parameter in space.items() if parameter.values}
    assert values == {
        "sequence_length": [10, 25, 50],
        "embedding_units": [400, 850],
        "recurrent_units": [400, 850, 1150],
        "recurrent_layers": [1, 2, 3],
        "connection": ["plain", "dual"],
        "dual_units": [400, 850],
        "rounds": [0, 2, 3, 4, 5, 6],
        "rank": [0, 50, 100, 200],
        **{
            f"{place}_l2": [0.0, 1e-6, 1e-5]
            for place in ("embedding", "input", "recurrent", "activation", "dual", "mogrifier")
        },
    }
    ranges = {
        name: (parameter.min_value, parameter.max_value, parameter.sampling)
        for name, parameter in space.items()
        if not parameter.values
    }
    places = ("input", "recurrent", "internal", "output", "dual_input", "dual_output")
    assert ranges == {
        "learning_rate": (1e-6, 1e-3, "log"),
        **{f"{place}_dropout": (0.0, 0.5, "linear") for place in places},
        "mogrifier_dropout": (0.0, 0.2, "linear"),
    }
    recipe = training.Recipe(**zoo.card(job.model, "ptb").recipe)
    assert (recipe.epochs, recipe.batch_size) == (100, 32)


SIZES = {400: 4, 850: 8, 1150: 11, 50: 3, 100: 5, 200: 9}  # in the same order


def tiny(settings):
    """Return the model of a trial of Table 1 with small sizes in place of the paper's."""
    small = {
        key: SIZES.get(value, value) if key.endswith("_units") or key == "rank" else value
        for key, value in settings.items()
    }
    card = zoo.card("dual_mdlstm")
    arguments, _ = training.split_overrides(card, {**small, "vocabulary_size": 7})
    return language_model(**arguments)


def first_with(job, **chosen):
    """Return the settings of the trial with least values and these."""
    hp = declared(job)
    hp.values = {**hp.values, **chosen}
    for parameter in hp.space:
        if hp.is_active(parameter):
            hp.values.setdefault(parameter.name, parameter.default)
    return job.settings(hp.values)


@pytest.mark.parametrize("chosen", [
    {"rounds": 2}, {"connection": "dual"},
])  # fmt: skip
def test_what_a_condition_leaves_undrawn_has_no_effect(chosen):
    """All that is drawn is 0; what is not drawn has the card's value, 0.5 for most dropouts."""
    job = tuning.load_job("dual_table1")
    settings = first_with(job, **chosen)
    drawn = [key for key in settings if key.endswith(("_dropout", "_l2"))]
    assert not any(settings[key] for key in drawn)
    assert {*space_of(job)} - {*settings}
    model = tiny(settings)
    inputs = [np.zeros((2, 5), "int32"), *(np.ones((2, n), "float32") for n in model.state_size)]
    plain, *_ = model.core(inputs, training=False)
    trained, *_ = model.core(inputs, training=True)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(plain), keras.ops.convert_to_numpy(trained)
    )
    assert float(sum(model.core.losses)) == 0


def test_a_grid_of_the_papers_tables_is_gone_through_whole():
    counts = {"doc_experts": 7, "doc_penalty": 4, "doc_latent_dropout": 4, "iog_gate_units": 5,
              "krause_dynamic": 24}  # fmt: skip
    for name, count in counts.items():
        job = tuning.load_job(name)
        assert (job.tuner, job.max_trials) == ("grid", None)
        assert len(set(map(str, of_grid(job)))) == count
    grid = of_grid(tuning.load_job("doc_latent_dropout"))
    np.testing.assert_allclose([drawn["latent_dropout"] for drawn in grid], [0.3, 0.4, 0.5, 0.6])


def of_grid(job, most=400):
    """Return what each trial of KerasTuner's grid search over `job` drew."""
    oracle = keras_tuner.oracles.GridSearchOracle(objective(), hyperparameters=declared(job))
    trials = list(trials_of(oracle, most))
    for values in trials:
        check_drawn(job, values)
    return [job.drawn(values) for values in trials]


def trials_of(oracle, most):
    """Yield the values of up to `most` trials, each of which ends with a made-up result."""
    oracle._save_trial = oracle.save = lambda *_: None
    for i in range(most):
        trial = oracle.create_trial("tuner0")
        if trial.status == "STOPPED":
            return
        values = dict(trial.hyperparameters.values)
        oracle.update_trial(trial.trial_id, {"val_perplexity": 100.0 - i % 7})
        trial.status = "COMPLETED"
        oracle.end_trial(trial)
        yield values


@pytest.mark.filterwarnings("ignore:The optimal value found")  # of few points
@pytest.mark.parametrize(("name", "options", "count"), [
    ("BayesianOptimization", {"max_trials": 8, "num_initial_points": 6}, 8),
    ("Hyperband", {"max_epochs": 9}, 23),
    # 2 sizes: with 0 and 6 rounds; with 2 and 4, beside rank 0, and rank 50 with 11 dropouts.
    ("GridSearch", {}, 2 * (2 + 2 * (1 + 11))),
])  # fmt: skip
def test_each_of_keras_tuners_oracles_draws_what_the_file_allows(own, name, options, count):
    job = own.with_settings({
        "connection": "plain", "learning_rate": 1e-3, "batch_size": 2, "output_dropout": 0.3,
        "output_bias": True,
    })  # fmt: skip
    oracle = getattr(keras_tuner.oracles, f"{name}Oracle")(
        objective(), hyperparameters=declared(job), seed=1, **options
    )
    trials = [check_drawn(job, values) for values in trials_of(oracle, 100)]
    assert len(trials) == count
    assert {settings.get("rank") for settings in trials} >= {None, 50}
    assert not any(key.startswith("tuner/") for settings in trials for key in settings)


def test_conditions_hold_in_every_draw_and_everything_is_drawn(own):
    seen = {}
    for values in draws(own, 200):
        for name, value in own.drawn(values).items():
            seen.setdefault(name, set()).add(str(value))
        settings = check_drawn(own, values)
        assert ("mogrifier_dropout" in settings) == (settings.get("rank") == 50)
    assert seen["rounds"] == {"0", "2", "4", "6"}
    assert seen["batch_size"] == {"2", "4", "8", "16", "32"}
    assert seen["recurrent_units"] == {"850", "[400, 850]"}
    assert seen["output_bias"] == {"True", "False"}
    assert seen["dual_l2"] == {"0.0", "1e-05"}
    assert len(seen["output_dropout"]) == 4
    assert "dual_units" not in seen
    assert {*seen} == {*space_of(own)}


def test_values_survive_keras_tuners_protobuf(own):
    for values in draws(own, 10):
        hp = declared(own)
        hp.values = values
        again = keras_tuner.HyperParameters.from_proto(hp.to_proto())
        assert own.settings(again.values) == own.settings(values)
        for space in (hp, again):  # as a worker does with the space that its chief sends
            before = [parameter.get_config() for parameter in space.space]
            own.declare(space)
            assert [parameter.get_config() for parameter in space.space] == before


CHANGES = {
    "dual_table1": {"tied": False, "rank": 50, "epochs": 2},
    "dual_evaluation": {"beta_1": 0.0},
    "dual_mdlstm_section42": {"parameters": "24M"},
    OWN: {"rounds": 2, "recurrent_units": [400, 850]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_reads_back_from_what_it_writes(name, write):
    job = tuning.load_job(name if name in JOBS else write(name))
    for job in [job.with_settings(overrides) for overrides in ({}, CHANGES[name])]:
        reread = tuning.load_job(write(job.to_toml(), "job.toml"))
        assert dataclasses.replace(reread, file=job.file) == job


def test_a_value_set_for_a_child_has_effect_where_its_conditions_hold(own):
    job = own.with_settings({"rank": 50})
    assert "rank" not in space_of(job) and "rank" not in job.fixed
    assert space_of(job)["mogrifier_dropout"].when == {"rounds": (2, 4)}
    values = {**declared(job).values, "rounds": 4, "mogrifier_dropout": 0.1}
    assert job.settings(values)["rank"] == 50
    assert "rank" not in job.drawn(values)
    assert "rank" not in job.settings({**values, "rounds": 6, "dual_l2": 0.0})
    for values in draws(job, 30):
        check_drawn(job, values)
    assert first_with(own.with_settings({"rank": 50, "rounds": 2}))["rank"] == 50
    with pytest.raises(ValueError, match="`dual_units` has an effect only where"):
        own.with_settings({"dual_units": 4})


def test_a_budget_or_units_take_the_place_of_the_sizes_that_they_decide():
    units = {"units": 64, "recurrent_units": 32}  # all sizes but the one beside it
    job = tuning.load_job("dual_table1").with_settings(units)
    assert not {*space_of(job)} & {*cards.SIZES} and job.fixed.items() >= units.items()
    job = tuning.load_job("dual_table1").with_settings({"parameters": "24M"})
    assert job.parameters == 24_000_000
    assert not {*space_of(job), *job.fixed} & {"units", *cards.SIZES}
    with pytest.raises(ValueError, match="`embedding_units` must be left out beside `parameters`"):
        sizes = {"parameters": "24M", "embedding_units": 400}
        check_job(tuning.load_job("dual_table1").with_settings(sizes))
    with pytest.raises(ValueError, match="`parameters` must be a whole number of weights"):
        tuning.load_job("dual_table1").with_settings({"parameters": "24X"})
    counts = {"1.5M": 1_500_000, "850k": 850_000, "24_000_000": 24_000_000, "2.29G": 2_290_000_000}
    assert {text: parse_count(text) for text in counts} == counts


MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))["jobs"]
WRONG = [(OWN.replace(before, after, 1), message) for before, after, message in MISTAKES["edits"]]


@pytest.mark.parametrize(("text", "message"), [*WRONG, *MISTAKES["texts"]])
def test_a_mistake_in_a_job_is_told_with_its_file(write, text, message):
    path = write(text)
    with pytest.raises(ValueError, match=message) as error:
        tuning.load_job(path)
    assert str(error.value).startswith(f"{path}: `")


def test_a_card_beside_the_job_is_found(write, tmp_path):
    write('builder = "language_model"\n[config]\nunits = 4\n[recipe]\nepochs = 1', "small.toml")
    job = tuning.load_job(write('model = "small.toml"\n[space]\nunits = [4, 5]'))
    assert job.model == str(tmp_path / "small.toml")
    (tmp_path / "below").mkdir()
    moved = tuning.load_job(write(job.to_toml(), "below/job.toml"))
    assert moved == dataclasses.replace(job, file=moved.file)


def test_numbers_of_two_kinds_are_all_floats_and_true_is_not_1(write):
    text = 'model = "lstm"\n[space]\nlearning_rate = [1, 0.5]\noutput_bias = [true, false]\n'
    child = "output_dropout = { values = [0.1, 0.2], when = { output_bias = [%s] } }"
    job = tuning.load_job(write(text + child % "true"))
    assert [type(value) for value in job.space[0].values] == [float, float]
    with pytest.raises(ValueError, match="Received: output_bias = .1."):
        tuning.load_job(write(text + child % "1"))


@given(st.randoms(use_true_random=False))
def test_deciding_conditions_changes_no_trial(source: random.Random):
    """Decided or not, a trial has the settings that the file's own conditions give it."""
    parents = [Parameter(name=name, values=(0, 1, 2)) for name in "ab"]
    written = list(parents)
    for name in "cdef":
        chosen = source.sample(written, source.randint(0, 2))
        most = {p.name: source.randint(1, len(p.values)) for p in chosen}
        when = {p.name: tuple(source.sample(p.values, most[p.name])) for p in chosen}
        written.append(Parameter(name=name, values=(0, 1, 2)[: source.randint(1, 3)], when=when))
    fixed = {"a": source.randint(0, 2)} if source.random() < 0.5 else {}
    written = [parameter for parameter in written if parameter.name not in fixed]
    job = Job(name="any", fixed=fixed, space=tuple(source.sample(written, len(written))))
    values = {parameter.name: source.choice(parameter.values) for parameter in written}
    expected = dict(fixed)
    for parameter in written:
        if all(expected.get(name) in allowed for name, allowed in parameter.when.items()):
            expected[parameter.name] = values[parameter.name]
    assert job.settings(values) == expected
    assert {*space_of(job)} <= {parameter.name for parameter in decided(written, fixed)}
    if job.space:
        hp = declared(job)
        hp.values = {name: value for name, value in expected.items() if name in space_of(job)}
        active = {parameter.name for parameter in hp.space if hp.is_active(parameter)}
        assert active == {*job.drawn(values)}
