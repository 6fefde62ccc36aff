# SPDX-License-Identifier: Apache-2.0
"""The picture of docs/internals/attention-hopper.md: what one block of the Hopper attention kernel does over time.

    python -m benchmarks.pages.pipeline_plot

Plays the kernel's rules with made-up durations (loads, products, softmax) on tasks of three groups of rows and writes
docs/images/attention_pipeline.svg. Needs matplotlib.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .style import GREY, OTHER_COLOURS, OURS, PEER_COLOURS, STYLE, readable_ink, save

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "attention_pipeline.svg"
WARPGROUPS, STAGES, QUERY_SLOTS = 3, 4, 2
STEPS, TASKS = 3, 4
"""Steps of keys per task, and how many tasks are simulated; the picture ends before the last one does."""
LATENCY, COPY, PRODUCT, SOFTMAX, OUTPUT = 2.0, 1.1, 1.3, 5.6, 2.2
"""Durations without a unit: until a copy arrives, to issue one, a product, a step's softmax, storing the output."""
END = 40.5
"""Where the picture ends."""
LIGHTER = 0.45
"""Opacity of every other task."""
Q_COLOUR = STAGE_COLOUR = GREY
V_COLOUR, K_COLOUR, _, OUTPUT_COLOUR = OTHER_COLOURS
SOFTMAX_COLOUR = PEER_COLOURS[2]
ROWS = (
    "loading warp: work items, Q",
    "loading warp: K",
    "loading warp: V",
    *(f"stage {number}" for number in range(STAGES)),
    *(f"warpgroup {number}" for number in range(WARPGROUPS)),
    "tensor cores",
)


@dataclass(frozen=True)
class Span:
    """What a row of ROWS does for a task from begin to end."""

    row: str
    begin: float
    end: float
    text: str
    colour: str
    task: int


class Pipeline:
    """Simulates the tasks; spans record what happened."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._ready = [0.0] * WARPGROUPS  # when each warpgroup may take its turn
        self._matrix_free = 0.0
        self._warp_free = dict.fromkeys("QKV", 0.0)
        self._arrived: dict[tuple[str, int], float] = {}  # by operand and the number of the stage or the task
        self._released: dict[tuple[str, int], float] = {}

    def play(self) -> list[Span]:
        """All spans of all tasks."""
        for task in range(TASKS):
            self._load_queries(task)
            for step in range(STEPS + 1):
                if step < STEPS:
                    self._load_stage(task, task * STEPS + step)
                for group in range(WARPGROUPS):
                    self._take_turn(task, group, step)
                if step > 0:
                    self._release(task, task * STEPS + step - 1)
        return self.spans

    def _add(self, row: str, begin: float, end: float, text: str, colour: str, task: int) -> float:
        self.spans.append(Span(row, begin, end, text, colour, task))
        return end

    def _load_queries(self, task: int) -> None:
        """Loads Q for all warpgroups once the buffers are free."""
        begin = max(self._warp_free["Q"], self._released.get(("Q", task - QUERY_SLOTS), 0.0))
        self._warp_free["Q"] = self._add("loading warp: work items, Q", begin, begin + 2 * COPY, "Q", Q_COLOUR, task)
        self._arrived["Q", task] = begin + 2 * COPY + LATENCY

    def _load_stage(self, task: int, number: int) -> None:
        """Loads K and V of a step once all warpgroups have left the stage."""
        free = self._released.get(("stage", number - STAGES), 0.0)
        for operand, colour in (("K", K_COLOUR), ("V", V_COLOUR)):
            begin = max(self._warp_free[operand], free)
            text = f"{operand}{number % STEPS}"
            end = self._add(f"loading warp: {operand}", begin, begin + COPY, text, colour, task)
            self._warp_free[operand] = end
            self._arrived[operand, number] = end + LATENCY

    def _take_turn(self, task: int, group: int, step: int) -> None:
        """PV of the previous step and QK of this one, then this one's softmax; after the last step, the output."""
        number = task * STEPS + step
        data = self._arrived["K", number] if step < STEPS else 0.0
        data = max(data, self._arrived["V", number - 1] if step > 0 else self._arrived["Q", task])
        begin = max(self._ready[group], self._matrix_free, data)
        products = [f"PV{step - 1}"] * (step > 0) + [f"QK{step}"] * (step < STEPS)
        end = begin + PRODUCT * len(products)
        row = f"warpgroup {group}"
        self._add(row, begin, end, " ".join(products), OURS, task)
        self._matrix_free = self._add("tensor cores", begin, end, str(group), OURS, task)
        if step < STEPS:
            self._ready[group] = self._add(row, end, end + SOFTMAX, f"softmax {step}", SOFTMAX_COLOUR, task)
        else:
            self._ready[group] = self._add(row, end, end + OUTPUT, "output", OUTPUT_COLOUR, task)
        if step == STEPS - 1:
            self._released["Q", task] = end

    def _release(self, task: int, number: int) -> None:
        """Frees the stage: every warpgroup has multiplied with its V."""
        self._released["stage", number] = self._matrix_free
        arrived = min(self._arrived["K", number], self._arrived["V", number])
        row = f"stage {number % STAGES}"
        self._add(row, arrived, self._matrix_free, f"K{number % STEPS} V{number % STEPS}", STAGE_COLOUR, task)


def draw(path: Path) -> None:
    """Writes the picture."""
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(8.6, 4.2))
        for span in Pipeline().play():
            if span.begin >= END:
                continue
            y, width = ROWS.index(span.row), min(span.end, END) - span.begin
            opacity = 1.0 if span.task % 2 == 0 else LIGHTER
            axes.barh(y, width, 0.78, span.begin, color=span.colour, alpha=opacity, linewidth=0)
            if width > 0.3 * len(span.text):  # leaves out labels of what is cut off
                ink = readable_ink(span.colour, opacity)
                axes.text(span.begin + width / 2, y, span.text, color=ink, size=7, ha="center", va="center")
        for border in (2.5, 6.5, 9.5):
            axes.axhline(border, color=GREY, linewidth=0.5, alpha=0.5)
        axes.set_yticks(range(len(ROWS)), ROWS)
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([])
        axes.set_xlim(0, END)
        axes.set_ylim(len(ROWS) - 0.4, -0.6)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_xlabel("time, not to scale; tasks are dark and light in turn", loc="left")
        save(figure, path)


def main() -> int:
    """Draws the picture."""
    draw(PICTURE)
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
