# framework_benchmark.py

import time
import asyncio
import numpy as np
import aiohttp
from typing import Callable

async def benchmark_endpoint(
    url: str,
    payload_fn: Callable,
    n_requests: int = 1000,
    concurrency: int = 10,
) -> dict:
    """Benchmark an HTTP inference endpoint with concurrent requests."""
    semaphore = asyncio.Semaphore(concurrency)
    latencies = []

    async def make_request():
        async with semaphore:
            payload = payload_fn()
            start = time.perf_counter()
            async with aiohttp.ClientSession() as session:
                async with session.post(url, json=payload) as response:
                    await response.read()
            latency = (time.perf_counter() - start) * 1000
            latencies.append(latency)

    tasks = [make_request() for _ in range(n_requests)]
    await asyncio.gather(*tasks)

    latencies.sort()
    return {
        "n_requests": n_requests,
        "concurrency": concurrency,
        "p50_ms": latencies[int(n_requests * 0.50)],
        "p95_ms": latencies[int(n_requests * 0.95)],
        "p99_ms": latencies[int(n_requests * 0.99)],
        "throughput_rps": n_requests / (sum(latencies) / 1000),
    }

async def compare_frameworks():
    feature_dim = 512
    payload_fn = lambda: {"features": np.random.randn(feature_dim).tolist()}

    print("Benchmarking serving frameworks (512-dim input, 1000 requests, 10 concurrent):")

    # FastAPI baseline
    fastapi_results = await benchmark_endpoint(
        "http://localhost:8080/predict",
        payload_fn,
    )
    print(f"\nFastAPI (baseline):")
    print(f" p50: {fastapi_results['p50_ms']:.1f}ms, p99: {fastapi_results['p99_ms']:.1f}ms")

    # TorchServe
    torchserve_results = await benchmark_endpoint(
        "http://localhost:8085/predictions/model",
        payload_fn,
    )
    print(f"\nTorchServe:")
    print(f" p50: {torchserve_results['p50_ms']:.1f}ms, p99: {torchserve_results['p99_ms']:.1f}ms")

    # Triton HTTP
    def triton_payload():
        features = np.random.randn(feature_dim).tolist()
        return {
            "inputs": [{
                "name": "input",
                "shape": [1, feature_dim],
                "datatype": "FP32",
                "data": features,
            }]
        }

    triton_results = await benchmark_endpoint(
        "http://localhost:8000/v2/models/model/infer",
        triton_payload,
    )
    print(f"\nTriton (HTTP):")
    print(f" p50: {triton_results['p50_ms']:.1f}ms, p99: {triton_results['p99_ms']:.1f}ms")

asyncio.run(compare_frameworks())
