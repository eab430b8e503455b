"""The SavedModel: ids or text in, scores or text out, without state between requests."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from keras import ops
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from dualnet._contexts import progress_bar
from dualnet.builders import LanguageModel, TranslationModel
from dualnet.runs.folder import vocabularies_of
from dualnet.runs.shipped import copy_licences
from dualnet.serving import requests, translator_endpoints
from dualnet.serving.completing import complete_text
from dualnet.serving.graph_bpe import GraphBPE
from dualnet.serving.graph_tokenizer import GraphTokenizer
from dualnet.serving.learning import Memories
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.sampling import generate_text
from dualnet.serving.served_reader import ServedReader, TextReader, begun, scored_text
from dualnet.text import Vocabulary


def in_graph(tokenizer: Any) -> TextReader:
    """Return the part of a graph that encodes and decodes as `tokenizer` does."""
    return GraphTokenizer(tokenizer) if isinstance(tokenizer, Vocabulary) else GraphBPE(tokenizer)


def write_saved_model(
    model: LanguageModel, folder: str, names: list[str], max_tokens: int, memories: Memories | None
) -> None:
    """Write `model` with the endpoints `names`, the first as default, into an empty folder.

    `max_tokens` is the bound of `generate_text` and `translate`; `memories` are those of a model
    that learns. The tokenisers go into `assets.extra`, which TensorFlow leaves to its users, and
    with them a request of each endpoint, which TensorFlow Serving runs when it loads the model.
    """
    max_tokens = min(max_tokens, tf.int32.max)
    module = tf.Module()
    tracked: list[object] = []
    reader = memories.reader if memories else ServedReader(model, model.graph)
    tokenizer = in_graph(model.vocabulary) if "score_text" in names else None
    built = {"step": _step(reader)}
    if isinstance(model, TranslationModel):
        built |= translator_endpoints.endpoints(model, reader, max_tokens)
    else:
        built |= {"score": _score(reader), **_predict_next(reader, tokenizer)}
    if tokenizer is not None:
        tracked.append(tokenizer)
        unknown_ids = model.vocabulary.unknown_ids
        built["score_text"] = _score_text(reader, tokenizer)
        built["generate_text"] = generate_text(reader, tokenizer, unknown_ids, max_tokens)
    if memories:
        built = {name: memories.read_with(endpoint) for name, endpoint in built.items()}
        built["learn"] = memories.learn()
        if tokenizer is not None:
            built["learn_text"] = memories.learn_text(tokenizer)
    if tokenizer is not None:
        built["complete_text"] = complete_text(model, reader, tokenizer, memories, tracked.append)
    signatures = {}
    with progress_bar(show=True) as bar:
        task = bar.add_task("", total=len(names), figures="")
        for i, name in enumerate(names):
            bar.update(task, description=f"endpoint {name}", completed=i)
            function, specs = requests.served(built[name])
            # Traced here: TensorFlow would trace it anew while it saves.
            traced = tf.function(function, input_signature=[specs], autograph=False)
            signatures[name] = traced.get_concrete_function()
            tracked += signatures[name].variables
    module.tracked = tracked
    signatures["serving_default"] = signatures[names[0]]
    # TensorFlow would trace the gradients of a model that learns again, and not find their loops.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, folder, signatures, options)
    _remove_gradients(Path(folder, "saved_model.pb"))
    extra = Path(folder, "assets.extra")
    extra.mkdir(exist_ok=True)
    for name, vocabulary in vocabularies_of(model).items():
        vocabulary.save(extra / name)
    copy_licences(extra, model.run)
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
        for name in names:
            writer.write(requests.warm_up(name, built[name][1]))


def _remove_gradients(file: Path) -> None:
    """Remove the names of gradients that were not saved: TensorFlow warns when it reads them."""
    saved = SavedModel.FromString(file.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.attr.pop("_gradient_op_type", None)
    file.write_bytes(saved.SerializeToString(deterministic=True))


def _score(reader: ServedReader) -> Endpoint:
    def score(inputs):
        in_row = requests.in_row(inputs)
        ids = tf.where(in_row, inputs["ids"], 0)
        log_p = reader.log_probabilities(ids[:, :-1], ids[:, 1:])
        # The 0 of the first token, cut off again from an empty text.
        scores = tf.pad(log_p, [[0, 0], [1, 0]])[:, : tf.shape(ids)[1]]
        return {"log_probabilities": tf.where(in_row, scores, 0.0)}

    return score, requests.rows_of(reader.words)


def _step(reader: ServedReader) -> Endpoint:
    def step(inputs):
        if reader.constants:  # one column would be read as many
            columns = tf.stack([tf.shape(inputs[name])[1] for name in reader.constants])
            required = "`memory`, `keys` and `mask` must have equally many columns. Received:"
            check = tf.debugging.Assert(tf.reduce_all(columns == columns[0]), [required, columns])
            inputs = requests.after([check], inputs)
        logits, states = reader.advance(inputs["ids"], reader.before(inputs))
        names = list(reader.inputs)[len(reader.constants) :]
        return {"logits": logits, **dict(zip(names, states))}

    return step, {"ids": requests.ids_of(reader.words), **reader.inputs}


def _predict_next(reader: ServedReader, tokenizer: TextReader | None) -> dict[str, Endpoint]:
    """Return `predict_next` and, with a tokeniser, `predict_next_text`."""

    def predict(ids, lengths, k, *before):
        logits, states = reader.last(ids, lengths, *before)
        # As many columns as the largest k; what stands beyond the k of a row is padding.
        width = ops.max(k, initial=1)
        probabilities, ids = tf.math.top_k(tf.nn.softmax(logits), k=width)
        within = tf.range(width) < k[:, None]
        probabilities = tf.where(within, probabilities, 0.0)
        answer = {"ids": tf.where(within, ids, -1), "probabilities": probabilities}
        if tokenizer is not None:
            answer["words"] = tf.where(within, tf.gather(tokenizer.words, ids), "")
        return answer | dict(zip(reader.inputs, states))

    def predict_next(inputs):
        ids = tf.where(requests.in_row(inputs), inputs["ids"], 0)
        return predict(ids, inputs["lengths"], inputs["k"], reader.before(inputs))

    limits = f"at least 1 and at most the number of words, {reader.words}"
    k = {"k": requests.whole(1, reader.words, limits)}
    ids = requests.rows_of(reader.words, least=1)
    endpoints = {"predict_next": (predict_next, ids | k | reader.inputs)}
    if tokenizer is not None:

        def predict_next_text(inputs):
            ids, lengths = begun(tokenizer.encode(inputs["prompts"], "prompts"), tokenizer.eos_id)
            return predict(ids, lengths, inputs["k"])

        endpoints["predict_next_text"] = predict_next_text, {"prompts": Input(tf.string), **k}
    return endpoints


def _score_text(reader: ServedReader, tokenizer: TextReader) -> Endpoint:
    def score_text(inputs):
        ids, lengths = begun(tokenizer.encode(inputs["texts"], "texts"), tokenizer.eos_id)
        log_p = reader.log_probabilities(ids[:, :-1], ids[:, 1:])
        return scored_text(tokenizer, ids, lengths, log_p)

    return score_text, {"texts": Input(tf.string)}
