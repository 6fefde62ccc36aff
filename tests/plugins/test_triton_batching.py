# SPDX-License-Identifier: Apache-2.0
"""The token budget of Triton's batches, call by call, in the order in which the core's scheduler makes the calls."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.triton_core import Request, Scheduler, compile_core, configuration

Load = Callable[..., Scheduler]
TWO_OUTPUTS = [{"name": "hidden", "dims": ["-1", "8"]}, {"name": "pooled", "dims": ["8"]}]
NO_DELAY = {"preferred_batch_size": [8], "max_queue_delay_microseconds": 0}
DELAY = {"preferred_batch_size": [8], "max_queue_delay_microseconds": 500}


@pytest.fixture(scope="module")
def batching(library_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library, with the core's stand-in loaded in the process."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    ctypes.CDLL(str(compile_core(compiler, tmp_path_factory.mktemp("core"))), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library_path.with_name("libpadfree_triton_batching.so")))


@pytest.fixture
def load(batching: ctypes.CDLL) -> Iterator[Load]:
    """Loads a model whose configuration has the given fields."""
    opened: list[Scheduler] = []

    def run(**changes: Any) -> Scheduler:
        opened.append(Scheduler(batching, configuration(**changes)))
        return opened[-1]

    yield run
    for scheduler in opened:
        scheduler.close()


def test_requests_join_until_the_budget_is_used_up(load: Load) -> None:
    scheduler = load()
    scheduler.begin()
    assert scheduler.include(Request(1, 600))
    assert scheduler.include(Request(1, 400))
    assert not scheduler.include(Request(1, 1))


def test_every_item_of_a_request_counts(load: Load) -> None:
    scheduler = load()
    scheduler.begin()
    assert scheduler.include(Request(2, 300))
    assert not scheduler.include(Request(2, 201))
    assert scheduler.include(Request(2, 200))


@pytest.mark.parametrize("batching_field", [NO_DELAY, DELAY])
def test_a_batch_that_grows_keeps_the_tokens_it_has(load: Load, batching_field: dict[str, Any]) -> None:
    scheduler = load(dynamic_batching=batching_field)
    scheduler.begin()
    first, second, third = Request(1, 600), Request(1, 300), Request(1, 101)
    assert scheduler.include(first)
    scheduler.send()
    scheduler.begin()
    assert scheduler.include(second)
    scheduler.begin()
    assert not scheduler.include(third)
    scheduler.begin()
    assert not scheduler.include(third)
    assert scheduler.include(Request(1, 100))


def test_another_batch_begins_empty(load: Load) -> None:
    scheduler = load()
    request = Request(1, 900)
    for payload in (0, 1, 0):
        scheduler.begin(payload)
        assert scheduler.include(request)
        assert not scheduler.include(Request(1, 900))
        scheduler.send()


def test_a_request_above_the_budget_goes_alone(load: Load) -> None:
    scheduler = load()
    scheduler.begin(0)
    assert scheduler.include(Request(1, 0))
    assert not scheduler.include(Request(1, 1001))
    scheduler.begin(1)
    assert scheduler.include(Request(1, 1001))
    assert not scheduler.include(Request(1, 0))


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**62, 4), (2**63 - 1, 2**63 - 1), (1, -1), (-1, -1), (-1, 0)])
def test_a_shape_whose_product_overflows_goes_alone(load: Load, shape: tuple[int, ...]) -> None:
    scheduler = load()
    scheduler.begin(0)
    assert scheduler.include(Request(1, 1))
    assert not scheduler.include(Request(*shape))
    scheduler.begin(1)
    assert scheduler.include(Request(*shape))
    assert not scheduler.include(Request(1, 1))


def test_requests_that_wait_for_the_queue_delay_count_once(load: Load) -> None:
    scheduler = load(dynamic_batching=DELAY)
    first, second, third = Request(1, 600), Request(1, 300), Request(1, 200)
    scheduler.begin()
    assert scheduler.include(first)
    scheduler.begin()
    assert scheduler.include(first)
    assert scheduler.include(second)
    scheduler.begin()
    assert scheduler.include(first)
    assert scheduler.include(second)
    assert not scheduler.include(third)


def test_a_batch_whose_requests_were_cancelled_in_the_queue_holds_nobody_up(load: Load) -> None:
    scheduler = load(dynamic_batching=DELAY)
    gone, big = Request(1, 600), Request(1, 900)
    scheduler.begin()
    assert scheduler.include(gone)
    gone.is_cancelled = True
    scheduler.begin()
    assert scheduler.include(big)


def test_a_round_that_finds_the_queue_empty_leaves_nothing_behind(load: Load) -> None:
    scheduler = load(dynamic_batching=DELAY)
    scheduler.begin()
    assert scheduler.include(Request(1, 600))
    scheduler.begin()
    scheduler.begin()
    assert scheduler.include(Request(1, 900))


def test_a_request_without_the_input_is_left_to_the_model(load: Load) -> None:
    scheduler = load()
    scheduler.begin()
    with pytest.raises(ValueError, match="no such input"):
        scheduler.include(Request(1, 5, name="other"))
    assert scheduler.answer


def test_names_are_read_with_their_escapes(load: Load) -> None:
    scheduler = load(input=[{"name": 'tök"\\\n', "allow_ragged_batch": True}])
    scheduler.begin()
    assert scheduler.include(Request(1, 5, name='tök"\\\n'))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": {}}, "model 'encoder': parameter 'padfree_max_tokens' is missing; add parameters"),
        ({"parameters": {"padfree_max_tokens": {"string_value": "many"}}}, '"many", allowed: a whole number above 0'),
        ({"parameters": {"padfree_max_tokens": {"string_value": "0"}}}, '"0", allowed: a whole number above 0'),
        ({"parameters": {"padfree_max_tokens": {"string_value": "9" * 30}}}, "allowed: a whole number above 0"),
        ({"input": [{"name": "input_ids"}]}, "no input has allow_ragged_batch: true"),
        ({"dynamic_batching": None}, "needs dynamic batching"),
        ({"response_cache": {"enable": True}, "output": TWO_OUTPUTS}, "response_cache does not go with 2 outputs"),
        ({"dynamic_batching": {"preferred_batch_size": [4, 8]}}, "preferred_batch_size 4 does not go with"),
        ({"dynamic_batching": {**DELAY, "priority_levels": 2}}, "set the delay to 0"),
        (
            {"dynamic_batching": {**DELAY, "default_queue_policy": {"default_timeout_microseconds": "10"}}},
            "set the delay to 0",
        ),
        ({"dynamic_batching": {**DELAY, "default_queue_policy": {"allow_timeout_override": True}}}, "queue timeouts"),
    ],
)
def test_a_configuration_without_a_budget_is_refused(load: Load, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        load(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(("enable", "outputs"), [(True, TWO_OUTPUTS[:1]), (False, TWO_OUTPUTS)])
def test_a_response_cache_where_there_is_one_answer_to_ask_for(
    load: Load, enable: bool, outputs: list[dict[str, Any]]
) -> None:
    load(response_cache={"enable": enable}, output=outputs)


def test_without_a_delay_timeouts_and_priorities_go(load: Load) -> None:
    load(dynamic_batching={**NO_DELAY, "priority_levels": 2, "default_queue_policy": {"allow_timeout_override": True}})


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', '{"a": "\\x"}', "[1, 2] 3", "[" * 200, '"\\u12g4"', '{"a": }'])
def test_what_is_no_json_is_refused(batching: ctypes.CDLL, text: str) -> None:
    with pytest.raises(ValueError, match="no JSON at character"):
        Scheduler(batching, text)
