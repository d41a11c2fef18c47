"""Do two samples come from one distribution? Chi-square of counts, rare cells pooled."""

from __future__ import annotations

from collections import Counter

import torch


def chi_square_p(one: Counter[str], two: Counter[str], least: float = 5) -> float:
    """The chance of counts at least this different, for samples of any two sizes."""
    total_one, total_two = sum(one.values()), sum(two.values())
    share = total_one / (total_one + total_two)
    cells: list[tuple[int, int]] = []
    rest = [0, 0]
    for key in one.keys() | two.keys():
        both = one[key] + two[key]
        if both * min(share, 1 - share) < least:
            rest[0] += one[key]
            rest[1] += two[key]
        else:
            cells.append((one[key], two[key]))
    if sum(rest) * min(share, 1 - share) >= least:
        cells.append((rest[0], rest[1]))
    if len(cells) < 2:
        return 1.0
    statistic = 0.0
    for a, b in cells:
        want_a, want_b = (a + b) * share, (a + b) * (1 - share)
        statistic += (a - want_a) ** 2 / want_a + (b - want_b) ** 2 / want_b
    free = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(free, torch.tensor(statistic / 2, dtype=torch.float64)))
