"""The parameters of real models by the names that their exporters gave them: what is called a weight is trained.

`pytest tests/paddle/static/test_onnx_import_names.py -m slow --corpus FOLDER`
"""

import logging
import pathlib
import re

import pytest

from amp_transpiler import static
from amp_transpiler.files.loading import load
from amp_transpiler.paddle.static.onnx_import import from_onnx
from amp_transpiler.paddle.static.trainable_slots import float_constants

pytestmark = pytest.mark.slow

# What exporters call parameters: torch (the module's path), tf2onnx (the variable that is read), Paddle2ONNX.
TORCH = r"(^|[./])(weight|bias|weight_ih|weight_hh|bias_ih|bias_hh|gamma|beta)$"
TENSORFLOW = r"ReadVariableOp|/(kernel|bias|gamma|beta):0$|^conv2d(_\d+)?/(kernel|bias):0$|embedding_lookup"
PADDLE = r"_weights$|_offset$|_bn_scale$|\.w_\d+$|\.b_\d+$"
STATISTIC = r"batch_norm2d_\d+\.w_[12]$|_mean$|_variance$|running_(mean|var)$|moving_(mean|variance)"
# What they call numbers that a formula made.
FORMULA = r"melscale|mel_banks|hann_window|povey|stft_conv_weights|forward_basis_buffer|^kernel$|/cq_t2010v2_1/"

# folder: (names of parameters, their number in all its models at least, names of what is not trained, its number)
FOLDERS = {
    "shipped/speechmos": (f"{TORCH}|{TENSORFLOW}", 160, None, 0),
    "shipped/silero-vad": (TORCH, 100, FORMULA, 8),
    "shipped/basic-pitch": (r"BiasAdd/ReadVariableOp$", 4, FORMULA, 2),
    "shipped/onnx-asr": (None, 0, FORMULA, 30),
    "shipped/rapidocr": (PADDLE, 130, None, 0),
    "shipped/arabic-name-romanizer": (TORCH, 6, None, 0),
    "shipped/nudenet": (TORCH, 100, None, 0),
    "exported/lstm_tagger": (TORCH, 4, None, 0),
    "exported/cond_mlp": (TORCH, 4, None, 0),
    "exported/timm_mobilenetv3_large": (TORCH, 20, None, 0),
}


def imported(path):
    """The program of a model; Constant nodes are weights where no initializer is, as Paddle2ONNX writes them."""
    main = from_onnx(str(path), static.Program())
    return main if main.all_parameters() else from_onnx(str(path), static.Program(), constant_nodes=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_exporters_call_parameters_is_trained(folder, request, caplog):
    corpus = request.config.getoption("--corpus")
    if corpus is None or not pathlib.Path(corpus, folder).is_dir():
        pytest.skip(f"{folder}: not in the corpus; lab/fetch_corpus.py and lab/export_corpus.py make it")
    caplog.set_level(logging.ERROR)
    parameters, least_trained, formulas, least_fixed = FOLDERS[folder]
    trained, fixed = 0, 0
    for path in sorted(pathlib.Path(corpus, folder).glob("*.onnx")):
        main = imported(path)
        names_trained = {parameter.name for parameter in main.all_parameters()}
        constants = {str(value.name) for value, tensor in float_constants(load(str(path)).model) if len(tensor.shape)}
        called = {name for name in constants if formulas and re.search(formulas, name)}
        assert not called & names_trained, path.name
        fixed += len(called)
        wanted = {name for name in constants if parameters and re.search(parameters, name)} - called
        wanted -= {name for name in constants if re.search(STATISTIC, name)}
        assert not wanted - names_trained, path.name
        trained += len(wanted)
    assert trained >= least_trained
    assert fixed >= least_fixed
