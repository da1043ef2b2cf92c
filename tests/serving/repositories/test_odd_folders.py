"""A model's folder with files that no model has is refused in one sentence, without harm to other models."""

from pathlib import Path

from tests.support import model_factory
from tests.support.odd_folders import ODD
from tests.support.serving_process import ServerProcess, wait_until


def odd_models(root: Path) -> dict[str, str]:
    """Model -> what is odd about it, beside the sound model "good"."""
    model_factory.onnx_scale(root, "good")
    names = {}
    for number, (what, change) in enumerate(ODD.items()):
        names[f"odd{number}"] = what
        change(model_factory.onnx_scale(root, f"odd{number}"))
    (root / "file").write_text("no model")
    (root / "nowhere").symlink_to("nowhere else")
    (root / "round").symlink_to("round")
    return names


def test_a_folder_that_is_no_model_is_refused_in_a_sentence_and_others_are_served(tmp_path: Path) -> None:
    names = odd_models(tmp_path)
    with ServerProcess(tmp_path, "--model-control-mode=explicit", wait="live") as server:
        for name, what in (names | dict.fromkeys(("file", "nowhere", "round"), "")).items():
            status, answer = server.post(f"/v2/repository/models/{name}/load")
            assert status in (400, 404), (what, status, answer)
            assert name in answer["error"], what
            assert str(tmp_path) not in answer["error"], what
        assert server.post("/v2/repository/models/good/load")[0] == 200
        status, rows = server.post("/v2/repository/index")
        assert (status, {row["name"] for row in rows}) == (200, {*names, "good"})
        assert "Traceback" not in server.log


def test_a_server_that_loads_all_it_finds_serves_the_sound_models(tmp_path: Path) -> None:
    odd_models(tmp_path)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with ServerProcess(tmp_path, *flags, wait="live") as server:
        wait_until(lambda: server.get("/v2/models/good/ready")[0] == 200, what="the sound model")
        assert "Traceback" not in server.log


def test_a_models_folder_that_is_missing_or_a_file_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing", tmp_path / "file"):
        server = ServerProcess(path, wait="")
        try:
            server.start()
            assert server.process is not None
            assert server.process.wait(60) != 0
            assert "Traceback" not in server.log
            assert "repository" in server.log
        finally:
            server.close()
