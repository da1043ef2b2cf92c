"""What a pickle imports is read without loading it, and names that can do harm are told apart from others."""

import bz2
import gzip
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.conversions.pickle_imports import COMPUTED, imports_in, is_dangerous


class Harm:
    """An object whose pickle would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("echo harm",)


HARM = {"names": ["posix.system"], "dangerous": ["posix.system"], "unread": []}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_imports_are_found_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(
        pickle.dumps(1, protocol) + pickle.dumps([1, Harm()], protocol)
    )  # the second one follows the first
    assert imports_in([path]) == HARM


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress, bz2.compress])
def test_imports_are_found_in_packed_files(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "model.joblib"
    path.write_bytes(pack(pickle.dumps(Harm())))
    assert imports_in([path]) == HARM


def test_imports_are_found_in_an_archive_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Harm()))
    assert imports_in([path]) == HARM


def test_imports_behind_an_array_are_found_and_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    path.write_bytes(pickle.dumps(1)[:-1] + b"\xff\xfe an array \x00" + pickle.dumps(Harm()))
    assert imports_in([path]) == {**HARM, "unread": ["model.joblib"]}


def test_a_file_that_is_cut_off_or_packed_in_another_way_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(pickle.dumps([Harm()] * 100))
    for name, content in (
        ("cut.pkl", pickle.dumps(Harm())[:-3]),
        ("packed.pkl", whole[:-9]),
        ("junk.pkl", b"\x04\x22M"),
    ):
        (tmp_path / name).write_bytes(content)
    assert imports_in(sorted(tmp_path.glob("*.pkl")))["unread"] == ["cut.pkl", "junk.pkl", "packed.pkl"]


def test_a_name_that_the_pickle_computes_is_dangerous(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(b"\x80\x04\x8c\x02os0\x8c\x05numpy\x8c\x05array2\x93.")
    assert imports_in([path])["dangerous"] == [COMPUTED]


@pytest.mark.parametrize(
    "name",
    [
        *("posix.system", "builtins.eval", "_io.open", "operator.attrgetter", "_operator.methodcaller"),
        "uuid._get_command_stdout",
        *("numpy.f2py.crackfortran.getlincoef", "numpy.testing._private.utils.runstring", "_osx_support._read_output"),
        *("idlelib.pyshell.ModifiedInterpreter.runcode", "lib2to3.pgen2.grammar.Grammar.loads", "imaplib.IMAP4_stream"),
        *("torch._inductor.codecache.compile_file", "torch.utils.bottleneck.__main__.run_cprofile", "torch.hub.load"),
        *("torch._dynamo.guards.GuardBuilder.get", "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression"),
        # by a way through something harmless
        *("logging.os.system", "builtins.eval.__call__", "sklearn.base.clone.__globals__", "functools.partial.__new__"),
    ],
)  # fmt: skip
def test_what_can_do_harm_is_dangerous(name: str) -> None:
    assert is_dangerous(name)


@pytest.mark.parametrize(
    "name",
    [
        *("numpy.ndarray", "numpy._core.multiarray._reconstruct", "numpy.random._pickle.__randomstate_ctor"),
        *("sklearn.pipeline.Pipeline", "sklearn.tree._tree.Tree", "scipy.sparse._csr.csr_matrix", "copyreg.__newobj__"),
        *("torch._utils._rebuild_tensor_v2", "torch.nn.modules.linear.Linear", "builtins.slice", "collections.OrderedDict"),
        *("pandas._libs.internals._unpickle_block", "joblib.numpy_pickle.NumpyArrayWrapper", "xgboost.core.Booster"),
    ],
)  # fmt: skip
def test_what_pickles_of_models_import_is_not(name: str) -> None:
    assert not is_dangerous(name)
