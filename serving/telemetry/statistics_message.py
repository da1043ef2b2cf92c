"""A model version's statistics as a message of the protocol. Source: Triton, docs/protocol/extension_statistics.md."""

from tritonclient.grpc import service_pb2 as pb

from serving.resources.memory import MemoryUse
from serving.telemetry.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics


def fill_statistics(row: pb.ModelStatistics, statistics: ModelStatistics) -> None:
    row.name = statistics.model_name
    row.version = str(statistics.model_version)
    row.last_inference = statistics.last_inference_ms
    row.inference_count = statistics.inference_count
    row.execution_count = statistics.execution_count
    totals = row.inference_stats
    for target, source in (
        (totals.success, statistics.success),
        (totals.fail, statistics.fail),
        (totals.queue, statistics.queue),
        (totals.compute_input, statistics.compute_input),
        (totals.compute_infer, statistics.compute_infer),
        (totals.compute_output, statistics.compute_output),
        (totals.cache_hit, statistics.cache_hit),
        (totals.cache_miss, statistics.cache_miss),
    ):
        _fill_duration(target, source)
    for place, responses in sorted(statistics.responses.items()):
        _fill_responses(row.response_stats[str(place)], responses)
    for size, batch in sorted(statistics.batches.items()):
        _fill_batch(row.batch_stats.add(batch_size=size), batch)
    _fill_memory(row, statistics.memory)


def _fill_responses(row: pb.InferResponseStatistics, statistics: ResponseStatistics) -> None:
    for target, source in (
        (row.compute_infer, statistics.compute_infer),
        (row.compute_output, statistics.compute_output),
        (row.success, statistics.success),
        (row.fail, statistics.fail),
        (row.empty_response, statistics.empty_response),
        (row.cancel, statistics.cancel),
    ):
        _fill_duration(target, source)


def _fill_batch(row: pb.InferBatchStatistics, batch: BatchStatistics) -> None:
    row.compute_input.count = row.compute_infer.count = row.compute_output.count = batch.count
    row.compute_input.ns = batch.compute_input_ns
    row.compute_infer.ns = batch.compute_infer_ns
    row.compute_output.ns = batch.compute_output_ns


def _fill_memory(row: pb.ModelStatistics, memory: MemoryUse) -> None:
    if memory.host:
        row.memory_usage.add(type="CPU", id=0, byte_size=memory.host)
    for device, size in memory.gpus:
        row.memory_usage.add(type="GPU", id=device, byte_size=size)


def _fill_duration(target: pb.StatisticDuration, source: Duration) -> None:
    target.count = source.count
    target.ns = source.ns
