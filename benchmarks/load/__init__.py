# SPDX-License-Identifier: Apache-2.0
"""Open-loop load on a Triton server: requests leave when a Poisson process says so, whether or not answers come back.

    python -m benchmarks.load steps --http 127.0.0.1:8000 --model bert --rates 500 1000 2000
    python -m benchmarks.load limit --http 127.0.0.1:8000 --model bert --p99-ms 20
    python -m benchmarks.load soak --grpc 127.0.0.1:8001 --model bert --rate 500 --minutes 6 --pid PID

Latency counts from the moment at which a request was meant to leave: a late generator or a full connection is part of
what a caller would have waited (no coordinated omission). Every answer is compared with the one that the same request
gets alone.
"""
