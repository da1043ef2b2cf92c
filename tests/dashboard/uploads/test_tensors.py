"""What a version's tensors are, where its file leaves something open."""

from dashboard.uploads.tensors import signature_with
from repository.config.document import Document

TEXT = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ -1, 2 ] } ]
"""


def test_what_the_file_leaves_open_comes_from_the_configuration() -> None:
    open_row = {"datatype": "", "shape": []}
    found = signature_with(
        {"inputs": [{"name": "x", **open_row}], "outputs": [{"name": "y", **open_row}]}, Document.read(TEXT)
    )
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert found["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [-1, -1, 2]}]


def test_what_the_file_says_stays() -> None:
    row = {"name": "x", "datatype": "FP64", "shape": [7]}
    assert signature_with({"inputs": [row]}, Document.read(TEXT)) == {"inputs": [row], "outputs": []}


def test_a_text_with_mistakes_completes_nothing() -> None:
    row = {"name": "x", "datatype": "", "shape": []}
    assert signature_with({"inputs": [row]}, Document.read("input ["))["inputs"] == [row]
