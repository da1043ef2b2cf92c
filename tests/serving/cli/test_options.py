"""tritonserver's command lines, taken and refused."""

import pytest

from serving.cli.command_line import OWN_FLAGS, build_parser, parse
from tests.support.flags import known_flags


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


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        # Each was tried with tritonserver 2.51, which takes it.
        (["--trace-level=MIN"], "trace_config", (("", "level", "TIMESTAMPS"),)),
        (["--trace-level=MAX"], "trace_config", (("", "level", "TIMESTAMPS"),)),
        (["--trace-level", "off"], "trace_config", (("", "level", "OFF"),)),
        (["--trace-config=Triton,file=t.json"], "trace_config", (("triton", "file", "t.json"),)),
        (["--trace-config=mode=OpenTelemetry"], "trace_config", (("", "mode", "opentelemetry"),)),
        (["--http-header-forward-pattern=(?-i)test_.*"], "http_header_forward_pattern", "(?-i)test_.*"),
        (["--grpc-port", "-47", "--allow-grpc", "0"], "allow_grpc", False),
        (["--http-port=-47", "--allow-http=off"], "allow_http", False),
        (["--model-contr=explicit"], "model_control_mode", "explicit"),
        (["--model-control-mode=EXPLICIT"], "model_control_mode", "explicit"),
        (["--exit-on=FALSE"], "exit_on_error", False),
        (["--repository=5"], "repository_poll_secs", 5.0),
        (["--http-a=127.0.0.1"], "http_address", "127.0.0.1"),
        (["--rate-limit=EXECUTION_COUNT"], "rate_limit", "execution_count"),
        (["--grpc-infer-response-compression-level=HIGH"], "grpc_infer_response_compression_level", "high"),
        (["--log-verbose=true"], "log_verbose", 1),
        (["--exit-timeout-secs=-3"], "exit_timeout_secs", 0.0),
        (["--repository-poll-secs=0", "--model-control-mode=poll"], "repository_poll_secs", 0.0),
        (["--model-load-thread-count=0"], "model_load_thread_count", 1),
        (["--strict-model-config=false", "--disable-auto-complete-config"], "disable_auto_complete_config", True),
        (["--strict-model-config=true"], "disable_auto_complete_config", True),
        (
            ["--response-cache-byte-size=1048576", "--response-cache-byte-size=2097152"],
            "cache_config",
            (("local", "size", "2097152"),),
        ),
    ],
)
def test_values_are_taken_as_tritonserver_takes_them(tmp_path, arguments, field, value):
    options, _ = parse([f"--model-repository={tmp_path}", *arguments])
    assert getattr(options, field) == value


def test_a_flag_of_ours_never_makes_an_abbreviation_of_tritonservers_ambiguous(tmp_path):
    assert known_flags() >= OWN_FLAGS
    options, _ = parse([f"--model-repository={tmp_path}", "--request-log-s=0.5"])
    assert options.request_log_sample == 0.5


def test_a_repository_given_twice_is_one(tmp_path):
    (tmp_path / "other").mkdir()
    places = [tmp_path, tmp_path / "other", f"{tmp_path}/", tmp_path / "other" / ".."]
    options, _ = parse([f"--model-store={place}" for place in places])
    assert [str(place) for place in options.model_repository] == [str(tmp_path), str(tmp_path / "other")]


def test_a_missing_repository_is_waited_for_where_errors_do_not_end_the_server(tmp_path):
    options, _ = parse([f"--model-repository={tmp_path}/later", "--exit-on-error=false"])
    assert options.model_repository == (tmp_path / "later",)


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
        (["--model-repository=/tmp", "--http-port=-47"], "--http-port: expected a port from 0 to 65535, got '-47'"),
        (["--model-repository=/tmp", "--exit-timeout-secs=long"], "expected a number of seconds, got 'long'"),
        (["--model-repository=/tmp", "--log=1"], "ambiguous option: --log=1 could match --log-verbose, --log-info"),
        (["--model-repository=/tmp", "--trace-level=ALL"], "expected level=OFF, level=TIMESTAMPS or level=TENSORS"),
        (["--model-repository=/tmp", "--cache-config=local,size=0"], "expected local,size=<bytes>"),
        (
            ["--model-repository=/tmp", "--cache-config=local,size=1048576", "--response-cache-byte-size=1048576"],
            "--response-cache-byte-size and --cache-config say the same",
        ),
        (["--model-repository=/etc/hostname", "--exit-on-error=false"], "is not a folder"),
        (["--model-repository=/tmp", "--http-restricted-api=infer"], "expected <api>"),
        (["--model-repository=/tmp", "--http-restricted-api=infr:key=v"], "unknown restricted api 'infr'"),
        (["--model-repository=/tmp", "--grpc-restricted-protocol=infr:key=v"], "unknown restricted protocol 'infr'"),
        (["--model-repository=/tmp", "--backend-config=onnxruntime"], "expected <backend>,<setting>=<value>"),
        (["--model-repository=/tmp", "--backend-config=onnxruntime,x="], "expected <backend>,<setting>=<value>"),
        (["--model-repository=/tmp", "--backend-config=threads=2"], "or default-max-batch-size=<n>, got 'threads=2'"),
        (["--model-repository=/tmp", "--backend-config=default-max-batch-size=many"], "expected a whole number"),
        (["--model-repository=/tmp", "--model-control-mode=manual"], "invalid choice: 'manual'"),
        (["--model-repository=/tmp", "--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (["--model-repository=/tmp", "--ready-despite-failed-models=few"], "or a share such as 50%, got 'few'"),
        (
            ["--model-repository=/tmp", "--ready-despite-failed-models=10%"],
            "--ready-despite-failed-models needs --exit-on-error=false",
        ),
        (
            ["--model-repository=/tmp", "--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "--load-model=* loads all models",
        ),
        (["--model-repository=/tmp", "--host-policy=cpu,cores=1"], "expected <policy>,cpu-cores=<cores"),
        (["--model-repository=/tmp", "--host-policy=cpu,cpu-cores=3-1"], "expected <policy>,cpu-cores=<cores"),
        (
            ["--model-repository=/tmp", "--http-restricted-api=trace:a=1", "--http-restricted-api=trace,health:b=2"],
            "--http-restricted-api: restricted api 'trace' can not be specified in multiple config groups",
        ),
        (["--model-repository=/tmp", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_bad_command_line_ends_with_one_sentence(capsys, arguments, message):
    assert message in _error(capsys, *arguments)


def test_deprecated_flags_set_the_flags_that_replaced_them(tmp_path):
    options, _ = parse([f"--model-repository={tmp_path}", "--response-cache-byte-size=1048576"])
    assert options.cache_size == 1048576


@pytest.mark.parametrize("flag", ["--allow-sagemaker", "--allow-vertex-ai"])
def test_routes_of_cloud_platforms_are_refused_unless_they_are_not_wanted(tmp_path, capsys, flag):
    assert parse([f"--model-repository={tmp_path}", f"{flag}=false"])[1] == []
    assert f"{flag}: this server has no routes" in _error(capsys, f"--model-repository={tmp_path}", f"{flag}=true")


def test_an_ipv6_address_may_be_written_as_for_tritonserver(tmp_path):
    flags = ("--http-address=ipv6:[::1]", "--grpc-address=[::]", "--metrics-address=::1")
    options, _ = parse([f"--model-repository={tmp_path}", *flags])
    assert (options.http_address, options.grpc_address, options.metrics_address) == ("::1", "::", "::1")


def test_every_flag_has_a_help_text():
    for action in build_parser()._actions:
        assert action.help
