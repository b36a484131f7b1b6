"""Files of inputs: looked at before they are read, and refused in words."""

import io
import os
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

from amp_transpiler.errors import InputError
from amp_transpiler.verification.inputs import given_inputs

MODEL = ir.from_proto(
    onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] x, int64[M] ids) => () { }')
)
IDS = np.arange(3)


def _npy(array):
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


def _header(shape, dtype="<f4", version=1):
    text = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def _zip(folder, *, compression=zipfile.ZIP_DEFLATED, **members):
    path = folder / "inputs.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in ({"ids.npy": _npy(IDS)} | members).items():
            archive.writestr(name, data)
    return path


def _x(folder, data, **options):
    return _zip(folder, **{"x.npy": data}, **options)


def _patched(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


def _encrypted(folder):
    path = _x(folder, _npy(np.zeros((2, 4), np.float32)))
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):  # flags, in the directory and before each member
        start = data.find(signature)
        while start >= 0:
            data[start + offset] |= 1
            start = data.find(signature, start + 4)
    path.write_bytes(data)
    return path


def _oddly_compressed(folder):
    path = _x(folder, _npy(np.zeros((2, 4), np.float32)), compression=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + offset] = 97
            start = data.find(signature, start + 4)
    path.write_bytes(data)
    return path


def _pipe(folder):
    os.mkfifo(folder / "inputs.npz")
    return folder / "inputs.npz"


def _pickle(folder):
    path = folder / "inputs.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), ids=IDS)
    return path


def _folder_named(folder, name):
    (folder / name).mkdir()
    return folder


def _message(folder, tensor):
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    return folder


def _external():
    tensor = onnx.TensorProto(data_type=1, dims=[1, 4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="passwd")
    return tensor


def _other(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


REFUSED = {
    "nothing": (lambda _: "", "the path is empty"),
    "a folder by accident": (lambda folder: folder, "is a folder that holds no inputs"),
    "a name too long": (lambda folder: folder / ("n" * 300), "File name too long"),
    "a NUL": (lambda folder: f"{folder}/a\0b", r"a\\x00b: no such file"),
    "a pipe": (_pipe, "inputs.npz: is a pipe or device, not a regular file"),
    "a device": (lambda _: "/dev/zero", "/dev/zero: is a pipe or device"),
    "one array": (lambda folder: _other(folder, "x.npz", _npy(IDS)), "holds one unnamed array"),
    "text": (
        lambda folder: _other(folder, "x.npz", b"text"),
        "plain arrays: File is not a zip file",
    ),
    "empty": (lambda folder: _other(folder, "x.npz", b""), "not an .npz file of plain arrays"),
    "a pickle": (_pickle, "array 'x' holds Python objects, a pickle, which is never loaded"),
    "encrypted": (_encrypted, "'ids' in it is encrypted"),
    "an unknown compression": (_oddly_compressed, "compression method is not supported"),
    "no array": (lambda folder: _zip(folder, **{"x.txt": b"1 2"}), "'x.txt' in it is no array"),
    "a damaged header": (
        lambda folder: _x(folder, b"\x93NUMPY\x01\x00\x05\x00abc"),
        "not an .npz file of plain arrays",
    ),
    "records": (lambda folder: _x(folder, _header((2, 4), version=3)), "version .* of numpy's format, for records"),
    "a wrong type": (lambda folder: _x(folder, _header((2, 4), "<U5")), "got str160.*expected float32"),
    "a wrong size": (lambda folder: _x(folder, _header((2, 5))), r"wrong shape: got float32\[2, 5\], expected float32"),
    "a wrong rank": (lambda folder: _x(folder, _header((2,))), "wrong rank"),
    "a negative size": (lambda folder: _x(folder, _header((-2, 4))), r"array 'x' is float32\[-2, 4\] by its header"),
    "4 TB": (lambda folder: _x(folder, _header((2**38, 4))), r"array 'x' is float32\[274877906944, 4\] by its header"),
    "beyond numbers": (lambda folder: _x(folder, _header((2**62, 2**62))), "by its header, .* bytes; an input has at"),
    "less than it says": (lambda folder: _x(folder, _header((200, 4)) + bytes(8)), "3200 bytes, but has 8"),
    "an unknown name": (lambda folder: _zip(folder, **{"y\x1b.npy": _header((9, 9))}), r"unknown input 'y\\+x1b'"),
    "a folder as npz": (lambda folder: _folder_named(folder, "a.npz"), "a.npz: is a folder"),
    "a folder as message": (lambda folder: _folder_named(folder, "input_0.pb"), "input_0.pb: is a folder"),
    "a message without type": (
        lambda folder: _message(folder, onnx.TensorProto(dims=[1, 4])),
        "element type UNDEFINED",
    ),
    "a short message": (
        lambda folder: _message(folder, onnx.TensorProto(dims=[10**6, 10**6], data_type=1, raw_data=b"1234")),
        "input_0.pb: the tensor for input 'x' has 4 bytes of data",
    ),
    "a message elsewhere": (lambda folder: _message(folder, _external()), "holds its data in another file"),
    "another message": (lambda folder: _other(folder, "input_0.pb", b"\xff" * 9).parent, "not the protobuf of a value"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_in_words(make, words, tmp_path):
    with pytest.raises(InputError, match=words) as caught:
        given_inputs(make(tmp_path), MODEL)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_read_and_converted(compression, dtype, tmp_path):
    x = np.arange(8, dtype=dtype).reshape(2, 4)
    [sample] = given_inputs(_x(tmp_path, _npy(x), compression=compression), MODEL)
    assert sample["x"].dtype == np.float32
    np.testing.assert_array_equal(sample["x"], x)
    np.testing.assert_array_equal(sample["ids"], IDS)


def test_the_second_version_of_the_header(tmp_path):
    path = _x(tmp_path, _header((2, 4), version=2) + bytes(32))
    assert given_inputs(path, MODEL)[0]["x"].shape == (2, 4)


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    size = 300_000_000
    with (
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(_header((size // 20, 5)))
        for _ in range(size // 10_000_000):
            member.write(bytes(10_000_000))
    data = bytearray((tmp_path / "b.npz").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 1000] = bytes(range(250)) * 4  # unpacking fails here
    (tmp_path / "b.npz").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "b.npz") as archive, pytest.raises(zlib.error):
        archive.testzip()
    tracemalloc.start()
    with pytest.raises(InputError, match=r"wrong shape: got float32\[15000000, 5\]"):
        given_inputs(tmp_path / "b.npz", MODEL)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_an_onnx_data_set(tmp_path):
    _message(tmp_path, helper.make_tensor("x", 1, [1, 4], [1, 2, 3, 4]))
    (tmp_path / "input_1.pb").write_bytes(helper.make_tensor("i", 7, [1], [5]).SerializeToString())
    [sample] = given_inputs(tmp_path, MODEL)
    assert sample["x"].tolist() == [[1, 2, 3, 4]]
    assert sample["ids"].tolist() == [5]
