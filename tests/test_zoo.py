import contextlib
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import keras
import numpy as np
import pytest

import dualnet
from benchmarks import published
from dualnet import cards, training, zoo
from dualnet.builders import BUILDERS
from dualnet.builders.arguments import Overrides
from dualnet.builders.initializers import INITIALIZERS, NEEDS_RANGE
from dualnet.requests import DynamicEvaluating
from dualnet.training import Recipe, split_overrides
from tests.checks import UNTRACED, array, once
from tests.reference import log_softmax

pytestmark = [*UNTRACED, once]

MODELS = {name: zoo.card(name) for name in zoo.list_models()}
TRANSLATORS = [name for name, card in MODELS.items() if card.builder == "encoder_decoder"]
# Table 2 of Oliva and Lago-Fernandez.
DUAL = (
    "lstm", "dual_lstm", "dlstm", "dual_dlstm", "mdlstm", "dual_mdlstm", "mdlstm_plus",
    "dual_mdlstm_tuned",
)  # fmt: skip
# Weights and first states of a layer; a depth of 3 has two further ones.
FURTHER_LAYER = {
    "attention_lstm": 320_800 + 2 * 200,
    "attention_lstm_peepholes": 320_600 + 2 * 200,
    "attention_gru": 241_200 + 200,
    "attention_dglstm": 361_200 + 2 * 200,
}
GATED = [name for name in MODELS if f"{name}_iog" in MODELS and not re.search(r"_\d+$", name)]
MEMBERS = {"awd_lstm_doc_5": ("awd_lstm_doc", 5)} | {
    f"variational_rhn_{times}{gate}": ("variational_rhn", times)
    for times in (5, 10)
    for gate in ("", "_iog")
}
MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))["cards"]
LOWERCASE = {*DUAL, "dual_mdlstm_iog"}
ROWS = [
    (corpus, name)
    for name, card in MODELS.items()
    for corpus in card.corpora
    if name not in TRANSLATORS
]
# Not what our count rounds to.
PRINTED = {
    ("awd_lstm", "wikitext-2"): "33M",  # 33.5M, cut
    ("awd_lstm_iog", "wikitext-2"): "53M",  # 53.5M, cut
    ("awd_lstm_mos", "ptb"): "22M",  # 21.501M with two biases
    ("awd_lstm_doc_5", "wikitext-2"): "185M",  # five times 37M
    ("variational_rhn_10", "ptb"): "320M",  # ten times 32M
    ("variational_rhn_10_iog", "ptb"): "326M",
}


@contextlib.contextmanager
def without_memory():
    """Give variables a shape, but no values."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    keras.utils.clear_session()  # else the next scope would initialise them all


def count_of(name, **overrides):
    # "keras" leaves out our own initial values.
    return zoo.build(name, initializer="keras", **overrides).count_params()


@pytest.mark.slow
def test_the_published_models_have_exactly_the_parameters_of_their_cards():
    # Ensembles take long to build; those with a gate have parameters of the gate more, see below.
    others = {*MEMBERS, *(f"{name}_iog" for name in GATED[1:])}
    rows = [row for row in ROWS if row[1] not in others]
    with without_memory():
        counts = {row: count_of(row[1], corpus=row[0]) for row in rows}
    assert counts == {row: zoo.card(row[1], row[0]).parameters for row in rows}


def parameters_of_gate(card):
    """Return the number of weights of a gate: two matrices of 300 units per word, and a bias."""
    return 601 * zoo.arguments_of(card, {})["vocabulary_size"]


def test_an_ensemble_has_the_parameters_of_its_members_and_one_gate():
    for name, (member, times) in MEMBERS.items():
        assert zoo.card(name).config["members"] == [member] * times
        for corpus in zoo.card(name).corpora:
            card, of_member = zoo.card(name, corpus), zoo.card(member, corpus)
            members = zoo.arguments_of(card, {})["members"]
            assert members == [{"builder": "language_model", "arguments": of_member.config}] * times
            gate = parameters_of_gate(of_member) if name.endswith("_iog") else 0
            assert card.parameters == times * of_member.parameters + gate
    small = {"units": 8, "depth": 2, "vocabulary_size": 20}
    member = zoo.build("variational_rhn", **small).count_params()
    ensemble = zoo.build("variational_rhn_5_iog", **small).count_params()
    assert ensemble == 5 * member + 2 * 300 * 20 + 20


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_has_its_count_and_a_recipe_for_multi30k(name):
    cards = zoo.card(name), zoo.card(name, "multi30k")
    with without_memory():
        counts = [count_of(name), count_of(name, corpus="multi30k")]
    assert counts == [card.parameters for card in cards]
    settings, recipe = split_overrides(zoo.card(name, "multi30k"), {})
    epochs = 20 if name.startswith("encdec") else 12
    assert (recipe.batching, recipe.epochs, settings["vocabulary_size"]) == ("pairs", epochs, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER_LAYER)
def test_the_depth_of_a_translator_is_one_argument(name):
    expected = zoo.card(name).parameters - (10_000 - 9) * 601 + 2 * FURTHER_LAYER[name]
    with without_memory():
        assert count_of(name, depth=5, vocabulary_size=9) == expected


@pytest.mark.parametrize(("corpus", "name"), ROWS)
def test_a_card_says_what_is_printed_and_what_is_ours_and_its_recipe_can_be_used(corpus, name):
    card = zoo.card(name, corpus)
    recipe, count = Recipe(**card.recipe), card.parameters
    if name in DUAL:
        assert card.printed == ("23M" if name == "dual_mdlstm_tuned" else f"{count / 1e6:.2f}M")
        assert {"recipe.batching", "config.locked_dropouts"} < {*card.ours}
        assert recipe.optimizer == "nadam" and recipe.sequence_length == 25
        assert recipe.batch_size == {"ptb": 32, "wikitext-2": 128}[corpus]
        assert set(card.published) == {"static", "dynamic"}
    elif card.printed:
        assert card.printed == PRINTED.get((name, corpus), f"{count / 1e6:.0f}M")
    assert card.lowercase == (corpus == "wikitext-2" and name in LOWERCASE)
    cache = {"cache_size", "cache_weight", "cache_scale", "cache_start"}
    dynamic = {key: value for key, value in card.evaluation.items() if key not in cache}
    assert cache & {*card.evaluation} == (cache if "cache" in card.published else set())
    if dynamic:
        assert "dynamic" in card.published
        rule = {"rule": dynamic.pop("rule")}
        assert DynamicEvaluating(**rule, **dynamic).of_rule() == dynamic
    if card.paper.startswith("none: a combination of"):
        assert not card.published and not card.printed and card.ours
    assert set(card.config) <= set(zoo.builder_arguments(BUILDERS[card.builder]))


@pytest.mark.parametrize("name", MODELS)
def test_every_setting_of_a_card_is_stated_by_its_source_or_marked_as_ours(name):
    sources = tomllib.loads(Path(__file__).with_name("stated.toml").read_text("utf-8"))
    sources = [s for s in sources.values() if any(fnmatchcase(name, p) for p in s["cards"])]
    for corpus in zoo.card(name).corpora:
        card = zoo.card(name, corpus)
        patterns = [
            f"{part}.{key}"
            for source in sources
            if corpus in source.get("corpora", [corpus])
            for part in cards.PARTS
            for key in source.get(part, ())
        ]
        if corpus in ("ptb", "wikitext-2") and not card.lowercase:  # a fact of the corpus
            patterns.append("config.vocabulary_size")
        settings = {f"{part}.{key}" for part in cards.PARTS for key in getattr(card, part)}
        stated = {key for key in settings if any(fnmatchcase(key, p) for p in patterns)}
        if corpus == "multi30k":  # no corpus of a paper: what is set for it is ours
            for table in cards.tables_of(name):
                own = table.get("corpora", {}).get(corpus, {})
                stated -= {f"{part}.{key}" for part in cards.PARTS for key in own.get(part, ())}
        assert (corpus, settings - stated) == (corpus, {*card.ours})


def test_patterns_of_what_is_ours_mark_every_setting_that_they_match(own):
    text = 'base = "encdec_doc"\nours = ["recipe.*", "config.latent_units"]\n'
    card = zoo.card(own(text), "iwslt-2016-en-de")
    assert card.ours == tuple(f"recipe.{key}" for key in card.recipe)
    inherited = zoo.card("encdec_doc", "iwslt-2016-en-de").ours
    assert inherited == zoo.card("encdec", "iwslt-2016-en-de").ours and len(inherited) == 20


@pytest.mark.parametrize("name", GATED)
def test_a_gated_model_is_its_base_without_dropouts_and_penalties(name):
    gate = {"gate": "input", "gate_units": 300, "gate_dropout": 0.5}
    if name == "awd_lstm":
        gate["gate_initializer_range"] = 0.01
    for corpus in zoo.card(f"{name}_iog").corpora:
        cards = zoo.card(name, corpus), zoo.card(f"{name}_iog", corpus)
        assert cards[1].parameters == cards[0].parameters + parameters_of_gate(cards[0])
        base, gated = (card.config for card in cards)
        left_out = base.keys() - gated.keys()
        assert {**{key: base[key] for key in base if key not in left_out}, **gate} == gated
        for key in left_out:  # and what the frozen weights start with
            assert re.search(
                "dropout|_l2$|_regularization$|^initializer|^(forget|trans.*)_bias", key
            )


def starts(model):
    """Return the values of the weights, by the last two parts of their paths."""
    return {"/".join(weight.path.split("/")[-2:]): array(weight) for weight in model.weights}


@pytest.mark.slow
@pytest.mark.parametrize("rule", INITIALIZERS)
def test_special_weights_start_as_documented_under_every_initializer(rule):
    settings = {"units": 4, "vocabulary_size": 9, "initializer": rule}
    settings |= {"initializer_range": 0.1} if rule in NEEDS_RANGE else {}
    translator = starts(zoo.build("attention_dglstm", **settings, stabilised=True))
    names = [name for name in translator if "first_state" in name or "stabiliser" in name]
    assert len(names) == 2 * 3 + 3 and not any(translator[name].any() for name in names)
    normed = starts(zoo.build("layernorm_lstm", affine=True, **settings))
    for name, value in normed.items():
        if "gain" in name or "shift" in name:
            assert (value == ("gain" in name)).all()
    gated = starts(zoo.build("zaremba_medium_iog", **settings))
    [bias] = [value for name, value in gated.items() if name.startswith("gate/") and "bias" in name]
    assert not bias.any()


def test_a_card_that_is_changed_changes_no_other():
    zoo.card("awd_lstm").config["recurrent_units"].append(5)
    assert 5 not in zoo.card("awd_lstm").config["recurrent_units"]


def test_the_highway_networks_have_the_cell_that_their_results_come_from():
    for name in zoo.list_models("variational_rhn*"):
        for corpus in zoo.card(name).corpora:
            arguments = zoo.arguments_of(zoo.card(name, corpus), {})
            for member in arguments.get("members", [{"arguments": arguments}]):
                assert member["arguments"]["gate_reads"] == "candidate"
    assert zoo.build("variational_rhn", units=3, vocabulary_size=5, gate_reads="state")


def test_the_settings_of_dynamic_evaluation_are_those_of_the_papers_for_means():
    # Of sums over the batches of 100 rows and 5 steps, and over all weights: 14 of AWD-LSTM, with
    # two biases per layer, and 3 more of MoS.
    published = {
        ("awd_lstm", "ptb"): (929_589, 14, 0.002, 0.02, 0.001),
        ("awd_lstm", "wikitext-2"): (2_088_628, 14, 0.002, 0.02, 0.001),
        ("awd_lstm_mos", "ptb"): (929_589, 17, 0.002, 0.075, 0.001),
        ("awd_lstm_mos", "wikitext-2"): (2_088_628, 17, 0.002, 0.02, 0.002),
    }
    for (name, corpus), (tokens, weights, rate, decay, epsilon) in published.items():
        evaluation, scale = zoo.card(name, corpus).evaluation, (tokens // 100 // 5) ** 0.5
        assert (evaluation["rule"], evaluation["sequence_length"]) == ("rms", 5)
        assert evaluation["learning_rate"] == pytest.approx(rate / scale, rel=2e-3)
        assert evaluation["epsilon"] == pytest.approx(epsilon / scale, rel=2e-3)
        assert evaluation["decay"] == pytest.approx(decay / weights, rel=3e-3)


def parts(card):
    """Return what a model is made of, without its sizes."""
    kinds = {k: v if isinstance(v, (str, bool)) else None for k, v in card.config.items()}
    return frozenset(item for item in kinds.items() if item[0] not in cards.SIZES)


# One of each kind; none whose parts another one has, too.
KINDS = {parts(card): name for name, card in MODELS.items() if name not in TRANSLATORS}
TRAINED = sorted(name for kind, name in KINDS.items() if not any(kind < other for other in KINDS))


def small_sizes(name):
    """Return the overrides that make a model of the zoo small."""
    small = {"units": 4, "rounds": 2, "rank": 2, "depth": 2}
    if name in MEMBERS:
        small["members"] = ["lstm", "zaremba_medium"]
    return {key: small[key] for key in small if key == "units" or key in zoo.card(name).config}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_every_kind_of_card_trains_two_steps_loads_and_does_not_look_ahead(name, corpus, tmp_path):
    recipe = Recipe(**zoo.card(name).recipe)
    model = zoo.build(name, vocabulary_size=len(corpus.vocabulary), **small_sizes(name))
    model.vocabulary = corpus.vocabulary
    model.loss_reduction = recipe.loss_reduction
    model.compile(optimizer=recipe.make_optimizer())
    if recipe.batching == "sentences":
        batches = corpus.sentence_batches("train", batch_size=3)
    else:
        batches = corpus.batches("train", batch_size=3, sequence_length=3)
    before = [array(weight) for weight in model.trainable_variables]
    history = model.fit(batches, epochs=1, steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert all(np.any(a != array(b)) for a, b in zip(before, model.trainable_variables))

    model.compile(optimizer="sgd")
    model.save(tmp_path / "model.keras")
    loaded = dualnet.load(tmp_path / "model.keras")
    tokens = corpus.test[None, :2]
    logits = [array(m.advance(tokens, m.initial_state(1))[0]) for m in (model, loaded)]
    np.testing.assert_array_equal(*logits)

    def scorer(ids):
        return log_softmax(array(loaded(ids[None, :-1])[0]))

    found = dualnet.check_causal(scorer, np.arange(6) % 4, positions=2)
    assert found.causal, str(found)


def sizes(model):
    """Return the size of the embedding and of each recurrent layer."""
    kernels = {re.sub(r".*/(.*/.*)", r"\1", w.path): w.shape for w in model.weights}
    layers = [shape[1] // 4 for path, shape in kernels.items() if re.match(r"cell_\d/kernel", path)]
    return model.core.get_layer("embedding").output_dim, layers


def test_units_replaces_all_sizes_and_a_size_beside_it_wins():
    assert sizes(zoo.build("dual_dlstm", vocabulary_size=20, units=6)) == (6, [6, 6])
    model = zoo.build("dual_dlstm", vocabulary_size=20, units=6, recurrent_units=10)
    assert sizes(model) == (6, [10, 10])
    tied = {"recurrent_units": 11, "recurrent_layers": 3, "embedding_units": 4}
    assert sizes(zoo.build("lstm", vocabulary_size=20, **tied)) == (4, [11, 11, 4])
    config = {"latent_units": 5, "experts": [0, 1], "gate_units": 7, "recurrent_units": [3]}
    assert zoo.resolve(config, {"units": 4}) == {"experts": [0, 1], "gate_units": 7, "units": 4}


def test_a_list_of_sizes_has_one_for_each_layer_of_a_depth_gated_stack():
    sizes = {"vocabulary_size": 6, "recurrent_units": [4, 5], "embedding_units": 5}
    assert zoo.build("lstm", cell="depth_gated_lstm", **sizes).state_size == [4, 4, 5, 5]
    with pytest.raises(ValueError, match="`recurrent_units` must be one size.* depth=3. Received"):
        zoo.build("lstm", cell="depth_gated_lstm", depth=3, **sizes)


@pytest.mark.slow
def test_the_layers_of_a_depth_gated_model_may_have_unequal_sizes(corpus):
    settings = {"vocabulary_size": len(corpus.vocabulary), "initializer": "by_fan_in"}
    model = zoo.build("dglstm", recurrent_units=[6, 4], **settings)
    assert model.state_size == [6, 6, 4, 4]
    model.compile(optimizer="adam")
    before = [array(weight) for weight in model.trainable_variables]
    model.fit(
        corpus.sentence_batches("train", batch_size=3), epochs=1, steps_per_epoch=2, verbose=0
    )
    assert all(np.any(a != array(b)) for a, b in zip(before, model.trainable_variables))
    translator = zoo.build(
        "attention_dglstm", vocabulary_size=9, units=4, depth=3, recurrent_units=[6, 4, 4]
    )
    assert translator.state_size[-6:] == [6, 6, 4, 4, 4, 4]


def test_another_cell_or_initializer_drops_the_arguments_of_the_cards():
    def resolve(name, **overrides):
        return zoo.resolve(zoo.card(name).config, overrides)

    for name, cell in (("dglstm", "gru"), ("mdlstm", "lstm"), ("variational_rhn", "elman")):
        config = resolve(name, cell=cell)
        assert config["cell"] == cell
        assert not {"depth", "coupled", "transform_bias", "rounds", "rank"} & config.keys()
    assert resolve("variational_rhn", cell="depth_gated_lstm")["depth"] == 8
    assert "initializer_range" not in resolve("awd_lstm", initializer="keras")
    model = zoo.build("mdlstm", vocabulary_size=20, units=4, cell="lstm", initializer="keras")
    assert model.arguments["cell"] == "lstm" and "rounds" not in model.arguments
    with pytest.raises(ValueError, match="`cell` must be one of.*Did you mean 'gru'"):
        zoo.build("dglstm", vocabulary_size=20, units=4, cell="gur")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"unit": 3}, "`unit` must be an argument.*unit=3. Did you mean 'units'.$"),
        ({"dual_units": 3, "units": 4}, "`dual_units` must equal `embedding_units`, 4"),
        ({"recurrent_units": [3], "units": 4}, "one for each of the rec.*recurrent_layers=2"),
        ({"name": "dual-lstm"}, "Did you mean one of.*'dual_lstm'"),
        ({"name": "mdlstm_plus", "corpus": "wikitext-2"}, r"`corpus` must be one of \['ptb'\]"),
        ({"name": "lstm", "embedding_units": 3, "recurrent_units": [4]},
         "`recurrent_units` must end with `embedding_units`"),
    ],
)  # fmt: skip
def test_bad_overrides_are_refused_by_name(overrides, message):
    with pytest.raises(ValueError, match=message):
        zoo.build(**{"name": "dual_mdlstm", "vocabulary_size": 20, **overrides})


@pytest.mark.parametrize("name", ["lstm", "encdec"])
def test_a_size_may_be_an_integer_of_numpy(name):
    model = zoo.build(name, vocabulary_size=np.int64(9), units=4)
    assert type(model.arguments["vocabulary_size"]) is int


OWN = """\
# two layers of our own
builder = "language_model"

[config]
cell = "lstm"
units = 8
recurrent_layers = 2

[recipe]
learning_rate = 0.01
"""


@pytest.fixture
def own(tmp_path):
    """Write a card, by default that of two layers, and return its path."""

    def own(text=OWN, name="two_layers.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return own


def test_a_card_of_ones_own_may_stand_wherever_a_name_does(own):
    card = zoo.card(own())
    assert (card.name, card.recipe) == ("two_layers", {"learning_rate": 0.01})
    model = zoo.build(own(), vocabulary_size=9)
    assert model.name == "two_layers"
    assert len(model.state_size) == 4
    assert zoo.build(own(), vocabulary_size=9, recurrent_layers=1).state_size == [8, 8]


def test_a_card_has_a_name_that_keras_accepts(own):
    assert zoo.card(own(name="größe 1.toml")).name == "gr__e_1"
    assert zoo.build(own(name="_a.toml"), vocabulary_size=9).name == "card_a"


def test_a_card_replaces_and_extends_the_values_of_its_base(own):
    text = 'base = "lstm"\n[config]\noutput_bias = true\n[recipe]\nepochs = 3\n'
    base, card = zoo.card("lstm", "wikitext-2"), zoo.card(own(text), "wikitext-2")
    assert card.name == "two_layers" and card.corpora == ("ptb", "wikitext-2")
    assert card.config == {**base.config, "output_bias": True}
    assert card.recipe == {**base.recipe, "epochs": 3}
    assert (card.paper, card.ours, card.lowercase) == (base.paper, base.ours, True)
    # What describes the base itself is not passed on.
    assert not (card.table or card.note or card.published or card.measured or card.printed)
    assert not zoo.card(own('base = "variational_rhn"\n')).also_published
    assert card.parameters is None
    sized = zoo.card(own('base = "lstm"\n[config]\nunits = 4\n'))
    assert sized.config["units"] == 4 and not {*sized.config} & {*cards.SIZES}


def test_a_card_has_the_corpora_that_it_lists_and_wins_over_those_of_its_base(own):
    path = own('base = "awd_lstm"\n[recipe]\nepochs = 3\n[corpora.wikitext-2]\nparameters = 5\n')
    card = zoo.card(path)
    assert (card.corpus, card.corpora, card.parameters) == ("wikitext-2", ("wikitext-2",), 5)
    assert card.recipe["epochs"] == 3  # 750 in [corpora.wikitext-2] of the base
    assert card.evaluation["cache_size"] == 3785


def test_a_base_may_be_a_list_or_a_card_beside_and_without_leaves_values_out(own):
    path = own()
    own('base = "two_layers.toml"\nours = ["recipe.learning_rate"]\n', "base.toml")
    text = 'base = ["base.toml", "_input_gate"]\nwithout = ["config.gate_*"]\n'
    card = zoo.card(own(text, "gated.toml"))
    assert card.config == {**zoo.card(path).config, "gate": "input"}
    assert card.recipe == zoo.card("zaremba_medium_iog").recipe
    assert card.ours == ()  # the gate has another recipe


@pytest.mark.parametrize(("base", "message"), MISTAKES["bases"])
def test_a_bad_base_is_told_with_its_file(own, base, message):
    own('base = "two_layers.toml"\n', "other.toml")
    with pytest.raises(ValueError, match=rf"(two_layers|other).toml: `base` {message}"):
        zoo.card(own(f"base = {base}\n"))


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES["edits"])
def test_a_mistake_in_a_card_is_told_with_its_file_and_way_out(
    own, corpus, tmp_path, before, after, message
):
    path = own(OWN.replace(before, after))
    with pytest.raises(ValueError, match=message) as error:
        dualnet.train(path, corpus, output=tmp_path / "RUN")
    assert str(path) in str(error.value)


def test_a_mistake_in_an_override_is_no_fault_of_the_card(own):
    with pytest.raises(ValueError, match=r"^`units` must be an integer"):
        zoo.build(own(), vocabulary_size=9, units=0)
    with pytest.raises(FileNotFoundError, match="There is no file 'nowhere.toml'"):
        zoo.card("nowhere.toml")


ENSEMBLE = """\
builder = "ensemble"

[config]
members = ["lstm", "two_layers.toml"]
gate = "lstm"
"""


@pytest.fixture
def ensemble(own):
    def ensemble(text=ENSEMBLE, member=OWN):
        own(member)
        return own(text, "both.toml")

    return ensemble


def test_an_ensemble_of_ones_own_takes_names_and_cards_beside_it(ensemble):
    card = zoo.card(ensemble())
    arguments = zoo.arguments_of(card, {"vocabulary_size": 9, "units": 4, "gate_units": 3})
    lstm, two_layers = (member["arguments"] for member in arguments.pop("members"))
    assert arguments == {"gate": "lstm", "gate_units": 3}
    assert lstm["units"] == 4 and "embedding_units" not in lstm and "gate" not in lstm
    assert two_layers == {"cell": "lstm", "recurrent_layers": 2, "vocabulary_size": 9, "units": 4}
    again = cards.with_vocabulary_size(zoo.arguments_of(card, {"units": 4, "gate_units": 3}), 9)
    assert [member["arguments"] for member in again["members"]] == [lstm, two_layers]


def test_the_gate_and_the_cache_of_a_member_stay_its_own(ensemble):
    member = OWN.replace("units = 8", 'units = 8\ngate = "input"\ncache_size = 5')
    card = zoo.card(ensemble(member=member))
    arguments = zoo.arguments_of(card, {"gate": "none", "cache_size": 7, "vocabulary_size": 9})
    assert (arguments["gate"], arguments["cache_size"]) == ("none", 7)
    member = arguments["members"][1]["arguments"]
    assert (member["gate"], member["cache_size"]) == ("input", 5)


@pytest.mark.parametrize(
    ("before", "after", "overrides", "message"),
    [*MISTAKES["ensembles"], ("", "", {"vocabulary_size": None}, r"^`vocabulary_size` must be")],
)
def test_a_mistake_in_an_ensemble_is_one_clear_sentence(
    ensemble, before, after, overrides, message
):
    with pytest.raises(ValueError, match=message):
        zoo.build(ensemble(ENSEMBLE.replace(before, after)), **{"vocabulary_size": 9, **overrides})


def test_a_mistake_in_a_member_is_told_with_its_card(ensemble):
    with pytest.raises(ValueError, match=r"two_layers.toml: `unts` must be an argument"):
        zoo.build(ensemble(member=OWN.replace("units", "unts")), vocabulary_size=9)
    with pytest.raises(FileNotFoundError, match="There is no file .*nowhere.toml"):
        zoo.build(ensemble(ENSEMBLE.replace("two_layers", "nowhere")), vocabulary_size=9)


def test_the_queue_of_benchmarks_has_settings_that_its_models_take():
    queue = published.read_queue({})
    for group in queue.values():
        for run in group.runs:
            card = training.card_for(run.model, group.corpus)
            training.split_overrides(card, run.settings)
    for name in zoo.list_models():
        for table in zoo.card(name).corpora:
            for measured in zoo.card(name, table).measured:
                for group in re.findall(r"--group (\S+)", measured["command"]):
                    assert group in queue, name


def test_a_run_of_the_queue_with_a_seed_of_its_own_comes_after_the_seeds_of_its_group():
    names = [run.name for run in published.read_queue({})["miniature-depth"].runs]
    own = [f"LSTM with peepholes seed {seed}" for seed in (4, 5, 6)]
    assert names[-3:] == own and names[-4] == "LSTM of Graves seed 3"
    assert len(names) == 5 * 3 + 3


@pytest.mark.parametrize(("name", "best"), [("miniature-depth", 0.004), ("one-marker-best", 0.016)])
def test_a_group_of_the_queue_takes_the_rates_whose_validation_ends_lowest(name, best):
    group = published.read_queue({})[name]  # runs with labels of their own, and named by models
    done = {}
    for run in group.rates.runs:
        end = 7.0 if run.settings["learning_rate"] == best else 8.0
        rows = [{"val_perplexity": str(value)} for value in (5.0, end)]  # the last epoch counts
        done[group.rates.name, run.name] = rows
    for run in group.runs:  # one that states a rate keeps it
        assert run.best_rate(done) == run.settings.get("learning_rate", best)
    assert not any(run.is_whole_in(done) for run in group.rates.runs)  # a run has more epochs


def test_type_checkers_know_the_arguments_of_every_builder():
    names = {name for builder in BUILDERS.values() for name in zoo.builder_arguments(builder)}
    assert {*Overrides.__annotations__} == names - {"name"}
