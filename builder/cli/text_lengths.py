# SPDX-License-Identifier: Apache-2.0
"""What `padfree inspect --texts` prints: a histogram of lengths, and what padding would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import count_text, print_line, print_table

if TYPE_CHECKING:
    from padfree.builder.text_lengths import TextLengths

_BAR = 40  # letters of the longest


def print_text_lengths(text_lengths: TextLengths) -> None:
    """Prints lengths, and the share of padding by batch size."""
    from padfree.builder.text_lengths import BATCHES

    count = len(text_lengths.lengths)
    most = max(texts for _, _, texts in text_lengths.buckets())
    rows = [
        (f"{low} to {high}", f"{texts}", "#" * round(_BAR * texts / most))
        for low, high, texts in text_lengths.buckets()
    ]
    print_table("lengths of the texts", ("tokens", "texts", ""), rows)
    half, *others = (f"{percent} % have at most {most}" for percent, most in text_lengths.percentiles().items())
    print_line(
        f"{count_text(count, 'text')}, {sum(text_lengths.lengths)} tokens, {text_lengths.mean:.1f} on average; {half}, "
        f"{', '.join(others)}; the longest {max(text_lengths.lengths)}",
    )
    if text_lengths.cut:
        print_line(f"{count_text(text_lengths.cut, 'text')} had more tokens than the model takes, and were cut")
    shares = [
        (f"{batch}", *(f"{100 * text_lengths.padding(batch, in_order_of_length=each):.0f} %" for each in (False, True)))
        for batch in BATCHES
    ]
    print_table("padding, of all slots", ("texts in a batch", "as they come", "sorted by length"), shares)
    saving = text_lengths.padding(32)
    print_line(
        f"padded in batches of 32 as they come, {1 / (1 - saving):.1f} times as many tokens are computed: without "
        f"padding {100 * saving:.0f} % of that work is left out",
    )
