"""tritonserver's command lines, taken and refused."""

import pytest

from serving.options import build_parser, parse


def _error(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_command_line_written_for_tritonserver_is_taken(tmp_path):
    options, warnings = parse(
        [
            f"--model-repository={tmp_path}",
            "--log-verbose=0",
            "--strict-model-config=false",
            "--allow-metrics=true",
            "--metrics-port=8012",
            "--model-control-mode=explicit",
            "--load-model=a",
            "--load-model=b",
            "--exit-on-error=false",
            "--pinned-memory-pool-byte-size=1024",
            "--backend-config=onnxruntime,intra_op_thread_count=2",
        ]
    )
    assert options.load_model == ("a", "b")
    assert options.metrics_port == 8012
    assert not options.exit_on_error
    assert not options.disable_auto_complete_config
    assert options.backend_config == (("onnxruntime", "intra_op_thread_count", "2"),)
    assert warnings == ["--pinned-memory-pool-byte-size has no effect on this server"]


def test_restrictions_are_parsed_and_their_value_is_never_shown(tmp_path):
    options, _ = parse(
        [f"--model-repository={tmp_path}", "--http-restricted-api=model-repository,logging:Admin-Key=secret"]
    )
    (restriction,) = options.http_restricted_api
    assert restriction.apis == ("model-repository", "logging")
    assert (restriction.header, restriction.value) == ("admin-key", "secret")
    assert "secret" not in repr(options)


def test_arguments_can_stand_in_a_file(tmp_path):
    (tmp_path / "arguments").write_text(f"--model-repository={tmp_path}\n--http-port=0\n")
    options, _ = parse([f"@{tmp_path / 'arguments'}"])
    assert options.http_port == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model-repository is required"),
        (["--model-repository=/does/not/exist"], "is not a folder"),
        (["--model-repository=/tmp", "--http-port=99999"], "expected a port from 0 to 65535, got '99999'"),
        (["--model-repository=/tmp", "--allow-http=maybe"], "expected true or false, got 'maybe'"),
        (["--model-repository=/tmp", "--exit-timeout-secs=-3"], "expected a number of seconds over 0"),
        (["--model-repository=/tmp", "--http-restricted-api=infer"], "expected <api>"),
        (["--model-repository=/tmp", "--http-restricted-api=infr:key=v"], "unknown api 'infr'"),
        (["--model-repository=/tmp", "--backend-config=onnxruntime"], "expected <backend>,<setting>=<value>"),
        (["--model-repository=/tmp", "--backend-config=threads=2"], "or default-max-batch-size=<n>, got 'threads=2'"),
        (["--model-repository=/tmp", "--backend-config=default-max-batch-size=many"], "expected a whole number"),
        (["--model-repository=/tmp", "--model-control-mode=manual"], "invalid choice: 'manual'"),
        (["--model-repository=/tmp", "--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (
            ["--model-repository=/tmp", "--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "--load-model=* loads all models",
        ),
        (["--model-repository=/tmp", "--host-policy=cpu,cores=1"], "expected <policy>,cpu-cores=<cores"),
        (["--model-repository=/tmp", "--host-policy=cpu,cpu-cores=3-1"], "expected <policy>,cpu-cores=<cores"),
        (
            ["--model-repository=/tmp", "--http-restricted-api=trace:a=1", "--http-restricted-api=trace,health:b=2"],
            "--http-restricted-api: 'trace' is in two groups",
        ),
        (["--model-repository=/tmp", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_bad_command_line_ends_with_one_sentence(capsys, arguments, message):
    assert message in _error(capsys, *arguments)


def test_deprecated_flags_set_what_has_taken_their_place(tmp_path):
    options, _ = parse([f"--model-repository={tmp_path}", "--response-cache-byte-size=1048576"])
    assert options.cache_size == 1048576


@pytest.mark.parametrize("flag", ["--allow-sagemaker", "--allow-vertex-ai"])
def test_routes_of_cloud_platforms_are_refused_unless_they_are_not_wanted(tmp_path, capsys, flag):
    assert parse([f"--model-repository={tmp_path}", f"{flag}=false"])[1] == []
    assert f"{flag}: this server has no routes" in _error(capsys, f"--model-repository={tmp_path}", f"{flag}=true")


def test_an_ipv6_address_may_come_as_tritonserver_takes_it(tmp_path):
    flags = ("--http-address=ipv6:[::1]", "--grpc-address=[::]", "--metrics-address=::1")
    options, _ = parse([f"--model-repository={tmp_path}", *flags])
    assert (options.http_address, options.grpc_address, options.metrics_address) == ("::1", "::", "::1")


def test_every_flag_has_a_help_text():
    for action in build_parser()._actions:
        assert action.help
