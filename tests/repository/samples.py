"""Configurations and strategies that several tests use."""

from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

RESNET50 = """name: "resnet50"
platform: "tensorrt_plan"
max_batch_size: 64
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 1000 ] } ]
dynamic_batching { preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 5000 }
instance_group [ { kind: KIND_GPU count: 2 } ]
"""

BERT_CLASSIFIER = """name: "bert_classifier"
platform: "pytorch_libtorch"
max_batch_size: 32
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ 128 ] }, \
{ name: "attention_mask" data_type: TYPE_INT64 dims: [ 128 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8, 16 ] max_queue_delay_microseconds: 10000 }
version_policy { latest { num_versions: 2 } }
"""

_names = st.text("abcXYZ_0é\"\\\n'# ", min_size=0, max_size=8)
_datatypes = st.sampled_from(list(mc.DataType.values()))
_dims = st.lists(st.integers(-1, 1 << 40), max_size=3)
_sizes = st.lists(st.integers(-5, 1 << 20), max_size=4)
_flags = st.booleans()


@st.composite
def model_configs(draw: st.DrawFn) -> mc.ModelConfig:
    """Any message, valid or not, with the fields that people use."""
    config = mc.ModelConfig(name=draw(_names), backend=draw(_names), max_batch_size=draw(st.integers(-2, 1 << 20)))
    for tensor in draw(st.lists(st.tuples(_names, _datatypes, _dims, _flags), max_size=3)):
        config.input.add(name=tensor[0], data_type=tensor[1], dims=tensor[2], optional=tensor[3])
    for tensor in draw(st.lists(st.tuples(_names, _datatypes, _dims), max_size=3)):
        config.output.add(name=tensor[0], data_type=tensor[1], dims=tensor[2])
    for group in draw(st.lists(st.tuples(_sizes, st.sampled_from([0, 1, 2, 3])), max_size=2)):
        config.instance_group.add(gpus=group[0], kind=group[1])
    for key, value in draw(st.dictionaries(_names, _names, max_size=3)).items():
        config.parameters[key].string_value = value
    _draw_policies(draw, config)
    return config


def _draw_policies(draw: st.DrawFn, config: mc.ModelConfig) -> None:
    match draw(st.sampled_from(["", "latest", "all", "specific"])):
        case "latest":
            config.version_policy.latest.num_versions = draw(st.integers(0, 5))
        case "all":
            config.version_policy.all.SetInParent()
        case "specific":
            config.version_policy.specific.versions[:] = draw(_sizes)
    match draw(st.sampled_from(["", "dynamic", "sequence"])):
        case "dynamic":
            config.dynamic_batching.preferred_batch_size[:] = draw(_sizes)
            config.dynamic_batching.preserve_ordering = draw(_flags)
            for level in draw(st.sets(st.integers(0, 9), max_size=2)):
                config.dynamic_batching.priority_queue_policy[level].max_queue_size = level
        case "sequence":
            config.sequence_batching.oldest.max_candidate_sequences = draw(st.integers(0, 9))
    if draw(_flags):
        config.optimization.graph.level = draw(st.integers(-2, 2))
        config.optimization.cuda.graphs = draw(_flags)
