"""A LiteRT file without `tf.lite`, which leaves TensorFlow after 2.22, by `litert-converter`.

One step of a model for one row becomes StableHLO, and that a file with the signature `step`,
which is compared with the model. For a batch of any size TensorFlow makes no StableHLO that the
converter (0.5.0, and 0.6.0 of October 2026) reads, and of TensorFlow itself no operation.

Needs `pip install --no-deps litert-converter` and the extra `litert`.
Usage: python benchmarks/without_tf_lite.py [MODEL ...]
"""

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from dualnet import zoo
from dualnet.serving.one_step import _one_step

MODELS = ("lstm", "dual_lstm", "dual_mdlstm", "awd_lstm_mos", "layernorm_gru")


def to_litert(step, specs):
    """Return the function `step` of arguments of `specs`, of fixed shapes, as a LiteRT file."""
    from litert_converter import converter_api_ext
    from litert_converter.mlir import ir, passmanager

    function = tf.function(step, input_signature=specs, autograph=False).get_concrete_function()
    frozen = convert_variables_to_constants_v2(function)
    text = tf.mlir.experimental.convert_function(frozen)
    text = re.sub(r"@__inference_\w+", "@main", text, count=1)
    text = tf.mlir.experimental.run_pass_pipeline(text, "tf-lower-to-mlprogram-and-hlo")
    context = ir.Context()
    converter_api_ext.prepare_mlir_context(context)
    with context:
        module = ir.Module.parse(text)
        [main] = module.body.operations
        names = [spec.name for spec in specs], list(function.structured_outputs)
        converter_api_ext.set_signature(main.operation, "step", *names)
        config = converter_api_ext.ConvertToTFLConfig()
        converter_api_ext.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
        return converter_api_ext.export_flatbuffer_to_bytes(module.operation)


def difference(name):
    """Return the largest difference of the file's outputs from the model's."""
    from ai_edge_litert.interpreter import Interpreter

    step, specs = _one_step(zoo.build(name, vocabulary_size=50, units=16))
    specs = [tf.TensorSpec((1, *spec.shape[1:]), spec.dtype, name=spec.name) for spec in specs]
    rng = np.random.default_rng(1)
    inputs = {spec.name: rng.normal(size=spec.shape).astype("float32") for spec in specs}
    inputs["ids"] = np.array([[3]], "int32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tflite")
        path.write_bytes(to_litert(step, specs))
        found = Interpreter(model_path=str(path)).get_signature_runner("step")(**inputs)
    expected = step(*map(tf.constant, inputs.values()))
    return max(np.abs(found[key] - value.numpy()).max() for key, value in expected.items())


print(f"TensorFlow {tf.__version__}, tf.lite: {hasattr(tf, 'lite')}")
for name in sys.argv[1:] or MODELS:
    try:
        print(f"{name:20} {difference(name):.1e}")
    except (ValueError, RuntimeError) as error:
        print(f"{name:20} {' '.join(str(error).split())[:200]}")
