"""How much memory there is for one more model, and that one which cannot fit is refused before it is loaded."""

from pathlib import Path

import pytest

from serving.core.errors import Code
from serving.models.load_report import LoadStopped, Step
from serving.resources import available_memory
from serving.resources.available_memory import Available, host_available, shortage
from serving.resources.memory import MemoryUse
from tests.serving.in_process import core, infer
from tests.serving.models.test_releases import ONE
from tests.support import model_factory

GIB = 1 << 30


def machine(folder: Path, available_kib: int, **groups: dict[str, str]) -> dict[str, Path]:
    """The files of a machine whose process is in the group /a/b; groups: their files, by "a" and "a_b"."""
    (folder / "meminfo").write_text(f"MemTotal:       99 kB\nMemAvailable:   {available_kib} kB\nHugePages_Total: 0\n")
    (folder / "own").write_text("1:name=systemd:/x\n0::/a/b\n")
    for name, files in groups.items():
        group = folder / "groups" / name.replace("_", "/")
        group.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (group / file).write_text(text)
    return {"meminfo": folder / "meminfo", "own_group": folder / "own", "groups": folder / "groups"}


def group(limit: str, used: int, cached: int = 0) -> dict[str, str]:
    stat = f"anon 5\nactive_file {cached}\ninactive_file 0\nslab_reclaimable 0\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def test_without_limits_the_machine_bounds_the_available_memory(tmp_path: Path) -> None:
    found = host_available(**machine(tmp_path, GIB >> 10, a=group("max", 5)))
    assert found == Available(GIB, "on this machine", 99 << 10)


def test_the_tightest_group_around_the_process_bounds_it_too(tmp_path: Path) -> None:
    files = machine(tmp_path, GIB >> 10, a=group("1000", 900), a_b=group("5000", 100))
    assert host_available(**files) == Available(100, "within the memory limit of its container", 1000)


def test_memory_that_the_kernel_takes_back_counts_as_available(tmp_path: Path) -> None:
    files = machine(tmp_path, GIB >> 10, a_b=group("1000", 900, cached=700))
    assert host_available(**files) == Available(800, "within the memory limit of its container", 1000)


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert host_available(**machine(tmp_path, 1, a_b=group("1000", 2000))) == Available(
        0, "within the memory limit of its container", 1000
    )


def test_where_nothing_can_be_read_nothing_is_bounded(tmp_path: Path) -> None:
    assert host_available(tmp_path / "none", tmp_path / "none", tmp_path) is None
    files = machine(tmp_path, GIB >> 10)
    (tmp_path / "own").write_text("4:memory:/x\n")  # version 1 alone
    assert host_available(**files) == Available(GIB, "on this machine", 99 << 10)


def test_this_machines_available_memory_can_be_read() -> None:
    found = host_available()
    assert found is not None
    assert 0 < found.size < 1 << 60
    assert shortage(MemoryUse(1)) == ""
    assert shortage(MemoryUse()) == ""


def test_the_sentence_for_a_shortage_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        available_memory, "host_available", lambda: Available(GIB + (GIB >> 1), "on this machine", 4 * GIB)
    )
    monkeypatch.setattr(
        available_memory, "gpu_available", lambda device: Available(3 << 20, f"on GPU {device}", 2 * GIB)
    )
    remedy = "; unload another model, or make room there"
    assert shortage(MemoryUse(4 * GIB)) == f"4 GiB are needed, and 1.5 GiB are available on this machine{remedy}"
    assert shortage(MemoryUse(GIB, ((1, 1 << 30),))) == f"1 GiB are needed, and 3 MiB are available on GPU 1{remedy}"
    assert shortage(MemoryUse(5 * GIB)) == (
        "5 GiB are needed, and there are 4 GiB in all on this machine; make the model smaller, or serve it where there is more"
    )
    assert shortage(MemoryUse(GIB, ((1, 2 << 20),))) == ""


@pytest.mark.asyncio
async def test_a_model_that_cannot_fit_is_refused_and_the_others_serve_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_factory.onnx_scale(tmp_path)
    model_factory.python_scale(tmp_path, "python")
    async with core(tmp_path, load_model=("scale",)) as server:
        (tmp_path / "scale/1/more").write_bytes(bytes(2000))
        with monkeypatch.context() as patched:
            patched.setattr(available_memory, "host_available", lambda: Available(1000, "on this machine", GIB))
            with pytest.raises(LoadStopped) as caught:
                await server.load_model("scale")
            assert caught.value.code is Code.UNAVAILABLE
            assert "there is not enough memory to load it: 2." in caught.value.message
            assert (
                "KiB are needed, and 1000 bytes are available on this machine; unload another" in caught.value.message
            )
            assert [step.step for step in caught.value.report.steps] == [Step.CHECK, Step.MEMORY]
            assert (await infer(server, "scale", ONE))["OUTPUT0"].item() == 2
            await server.load_model("python")  # nobody knows what it reads
        await server.load_model("scale")


@pytest.mark.asyncio
async def test_a_sleeping_model_is_checked_when_it_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'
    model_factory.onnx_scale(tmp_path, extra=asleep)
    async with core(tmp_path, load_model=("scale",)) as server:
        with monkeypatch.context() as patched:
            patched.setattr(available_memory, "host_available", lambda: Available(10, "on this machine", GIB))
            with pytest.raises(
                Exception, match="could not be loaded for its first request: there is not enough memory"
            ):
                await infer(server, "scale", ONE)


@pytest.mark.asyncio
async def test_the_check_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_factory.onnx_scale(tmp_path)
    monkeypatch.setattr(available_memory, "host_available", lambda: Available(10, "on this machine", GIB))
    async with core(tmp_path, check_memory=False, load_model=("scale",)) as server:
        assert server.model_ready("scale")


@pytest.mark.asyncio
async def test_models_that_may_go_make_room_before_anything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is memory for one of them: the other one goes to sleep first, as the budget has it."""
    evictable = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"evictable\\"}" } }'
    model_factory.onnx_scale(tmp_path, "one", extra=evictable)
    model_factory.onnx_scale(tmp_path, "two")
    async with core(tmp_path, memory_budget=1, load_model=("one",)) as server:
        await infer(server, "one", ONE)

        def available() -> Available:
            awake = [row for row in server.known_models() if row.name == "one" and row.state == "READY"]
            return Available(10 if awake else GIB, "on this machine", GIB)

        monkeypatch.setattr(available_memory, "host_available", available)
        await server.load_model("two")
        assert (await infer(server, "two", ONE))["OUTPUT0"].item() == 2
