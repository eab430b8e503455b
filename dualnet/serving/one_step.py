"""ONNX and LiteRT files that hold a single step of a model, for programs without TensorFlow."""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dualnet._checks import ArgumentError, extra
from dualnet._contexts import dtype_policy, hidden_stderr
from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.evaluation import perplexity
from dualnet.evaluation.arguments import perplexity_of
from dualnet.layers._mixture import in_one_piece
from dualnet.requests import Exporting
from dualnet.runs.shipped import licences_of
from dualnet.serving.file_learning import FileLearning

# A function that computes one step, and the specs of its arguments.
OneStep = tuple[Callable[..., Tensors], list[tf.TensorSpec]]
Files = dict[str, bytes]  # by what follows the name of the model's own


def onnx_files(model: LanguageModel, request: Exporting, name: str) -> Files:
    """Return one step of `model` as an ONNX file `name`, and what learns as another one."""
    # In ONNX, an output with the name of an input would be that input.
    model = in_float32(model)
    metadata = licences_of(model.run)
    if request.learn is None:
        step = _one_step(model, output_prefix="new_")
        data = to_onnx(*step, model.core.variables, metadata=metadata)
        return {"": data if request.quantize is None else _with_bytes(data)}
    learning = FileLearning(model, request)
    step = _one_step(model, output_prefix="new_", learning=learning)

    def learn(*arguments: Tensor) -> Tensors:
        answer = learning.learn(*arguments)
        return {"new_memory": answer.pop("memory"), **answer}

    specs = learning.specs(batch=None, time=None)
    return _with_common_weights(
        f"{name}.weights",
        {
            "": to_onnx(*step, learning.core.variables, metadata=metadata),
            ".learn.onnx": to_onnx(learn, specs, learning.tail.variables, metadata=metadata),
        },
    )


def _with_common_weights(name: str, files: Files) -> Files:
    """Return ONNX files whose weights are in another one, `name`, each once."""
    import onnx

    weights, places = bytearray(), {}
    for suffix, data in files.items():
        proto = onnx.load_from_string(data)
        for tensor in proto.graph.initializer:
            value = tensor.raw_data
            if len(value) >= 1024:
                if value not in places:
                    places[value] = len(weights)
                    weights += value
                onnx.external_data_helper.set_external_data(
                    tensor, name, offset=places[value], length=len(value)
                )
                tensor.ClearField("raw_data")
        files[suffix] = proto.SerializeToString()
    return {**files, ".weights": bytes(weights)}


def _axes_of_one(context: Any, node: Any, *_: object) -> None:
    """Convert BroadcastGradientArgs of shapes of one rank: gradients are summed over axes of 1."""
    constants = {f"{node.name}_1": np.array([1], "int32"), f"{node.name}_all": np.array([-1])}
    one, flat = (context.make_const(*item).output[0] for item in constants.items())
    for shape, axes in zip([*node.input], [*node.output]):
        is_one = context.make_node("Equal", [shape, one]).output[0]
        ones = context.make_node("NonZero", [is_one]).output[0]
        ones = context.make_node("Reshape", [ones, flat]).output[0]
        context.replace_all_inputs(axes, ones)
    context.remove_node(node.name)


def _where(_: Any, node: Any, *others: object) -> None:
    """Convert SelectV2, for which the converter multiplies by 0 and 1: 0 times nan is nan."""
    node.type = "Where"


def _with_bytes(data: bytes) -> bytes:
    """Return an ONNX file with the matrices of `data` as bytes, a scale for each column."""
    with extra("onnx", "`quantize` needs onnxruntime"):
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process
    with tempfile.TemporaryDirectory() as folder, hidden_stderr():
        path = Path(folder, "model.onnx")
        path.write_bytes(data)
        quant_pre_process(path, path, skip_symbolic_shape=True)  # else turned ones stay as they are
        # Unsigned: signed sums overflow on processors that lack VNNI.
        quantize_dynamic(path, path, weight_type=QuantType.QUInt8, per_channel=True)
        return path.read_bytes()


def figures(model: LanguageModel, path: Path, ids: np.ndarray) -> dict[str, float]:
    """Return the perplexity on `ids` of the file `path`, which reads one by one, and of `model`."""
    run, shapes = _step_of(path)
    sizes = {name: shape[1:] for name, shape in shapes.items() if name != "ids"}
    inputs: Tensors = {name: np.zeros((1, *size), np.float32) for name, size in sizes.items()}
    losses = []
    for token, target in itertools.pairwise(ids):
        answer = run({"ids": np.full((1, 1), token, np.int32), **inputs})
        logits = answer["logits"][0, 0].astype(np.float64)
        logits -= logits.max()
        losses.append(np.log(np.exp(logits).sum()) - logits[target])
        for name in inputs:  # the memory stays as it is
            inputs[name] = answer.get(name, answer.get(f"new_{name}", inputs[name]))
    of_model = perplexity(model, ids, batch_size=1)
    return {"tokens": len(losses), "perplexity": perplexity_of(losses), "of_model": of_model}


def _step_of(path: Path) -> tuple[Callable[[Tensors], Tensors], dict[str, Sequence[int]]]:
    """Return a function of inputs that runs the step of a file, and the shapes of the inputs."""
    if path.suffix == ".onnx":
        with extra("onnx", "`check` needs onnxruntime"):
            import onnxruntime
        session = onnxruntime.InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        shapes = {spec.name: spec.shape for spec in session.get_inputs()}
        return lambda inputs: dict(zip(names, session.run(None, inputs))), shapes
    with extra("litert", "`check` needs ai-edge-litert"):
        from ai_edge_litert.interpreter import Interpreter
    step = Interpreter(model_path=str(path)).get_signature_runner("step")
    shapes = {name: spec["shape"] for name, spec in step.get_input_details().items()}
    return lambda inputs: step(**inputs), shapes


def to_onnx(
    step: Callable[..., Tensors],
    specs: list[tf.TensorSpec],
    variables: Sequence[keras.Variable],
    *,
    outputs: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
) -> bytes:
    """Return the function `step` of arguments of `specs` as an ONNX file, with its `variables`.

    `outputs` says their order, by name; `metadata` is for the programs that run the file.
    """
    with extra("onnx", "An ONNX file needs onnx and tf2onnx"):
        import onnx
        import tf2onnx
    variables = [v for v in variables if keras.backend.is_float_dtype(v.dtype)]  # no seeds
    weights = {f"weight_{i}": variable for i, variable in enumerate(variables)}
    named = [tf.TensorSpec(v.shape, v.dtype, name=name) for name, v in weights.items()]

    def with_weights(*values: Tensor) -> Tensors:
        with keras.StatelessScope(zip(variables, values[len(specs) :])):
            return step(*values[: len(specs)])

    signature = [*specs, *named]
    function = tf.function(with_weights, input_signature=signature, autograph=False)
    with hidden_stderr():  # the lines and warnings of a converter
        proto, _ = tf2onnx.convert.from_function(
            function,
            input_signature=signature,
            opset=18,
            custom_op_handlers={
                "BroadcastGradientArgs": (_axes_of_one, []),
                "SelectV2": (_where, []),
            },
        )
    # The converter copies constants many times, and inputs never.
    for value in [*proto.graph.input]:
        if value.name in weights:
            array = keras.ops.convert_to_numpy(weights[value.name])
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            proto.graph.input.remove(value)
    by_name = {output.name: output for output in proto.graph.output}
    del proto.graph.output[:]
    proto.graph.output.extend(by_name[name] for name in outputs or by_name)
    onnx.helper.set_model_props(proto, {k: str(v) for k, v in (metadata or {}).items()})
    try:
        onnx.checker.check_model(proto)  # tf2onnx keeps operations that it cannot convert
    except onnx.checker.ValidationError as error:
        raise _cannot_hold("onnx", error) from error
    return bytes(proto.SerializeToString())


def litert_files(model: LanguageModel, request: Exporting, name: str) -> Files:
    """Return one step of `model` as a LiteRT file with the signature `step`, and `learn`."""
    model = in_float32(model)
    learning = FileLearning(model, request) if request.learn is not None else None
    graphs = {"step": _one_step(model, learning=learning)}
    core = model.core if learning is None else learning.core
    if learning is not None:
        specs = learning.specs(batch=1, time=learning.settings["sequence_length"])
        graphs["learn"] = learning.learn, specs
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in core.variables]
    module.graphs = {
        name: tf.function(graph, input_signature=specs, autograph=False)
        for name, (graph, specs) in graphs.items()
    }
    with tempfile.TemporaryDirectory() as folder, hidden_stderr():
        tf.saved_model.save(module, folder, signatures=module.graphs)
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, [*graphs])
            if request.quantize or request.dtype:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if request.dtype is not None:
                converter.target_spec.supported_types = [tf.float16]
            return {"": bytes(converter.convert())}
        except (OSError, tf.errors.OpError):
            raise
        except Exception as error:  # of the converter, of kinds that it does not export
            raise _cannot_hold("litert", error) from error


def _cannot_hold(format: str, error: Exception) -> ArgumentError:
    required = "must be another for this model, or what it learns, which the format cannot hold."
    reason = " ".join(str(error).split())[:200]
    way_out = " Export it as a SavedModel."
    return ArgumentError("format", f"{required} Received: {format!r} ({reason}).", way_out)


def _one_step(
    model: LanguageModel, output_prefix: str = "", learning: FileLearning | None = None
) -> OneStep:
    """Return a function that computes one step, and the specs of its arguments."""
    sizes = {f"state_{i}": size for i, size in enumerate(model.state_size, start=1)}
    outputs = ["logits", *(output_prefix + name for name in sizes)]
    core = model.core
    if learning is not None:
        core = learning
        sizes |= {"memory": learning.lesson.size}
        outputs += learning.names

    def step(ids: Tensor, *inputs: Tensor) -> Tensors:
        # A negative id would count from the end; beyond it is an error.
        ids = tf.where(ids < 0, model.vocabulary_size, ids)
        with in_one_piece():
            return dict(zip(outputs, core([ids, *inputs], training=False)))

    specs = [tf.TensorSpec((None, size), tf.float32, name=name) for name, size in sizes.items()]
    return step, [tf.TensorSpec((None, 1), tf.int32, name="ids"), *specs]


def in_float32(model: LanguageModel) -> LanguageModel:
    """Return `model`, or a float32 copy of it: LiteRT handles no other type well."""
    if all(layer.compute_dtype == "float32" for layer in model.core.layers):
        return model
    with dtype_policy("float32"):
        copy = LanguageModel.from_config(model.get_config())

    copy.core.set_weights(model.core.get_weights())
    copy.run = model.run
    if any(layer.compute_dtype != "float32" for layer in copy.core.layers):
        required = "must be 'saved_model' for a core of your own that does not compute in float32."
        raise ArgumentError("format", f"{required} Received: {model.name!r}.")
    return copy
