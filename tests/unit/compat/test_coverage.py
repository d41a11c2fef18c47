"""The one rule of what code runs where, by its laws and by what was tried on hardware tools.

To see it fail: take the `a` branch out of `_fits` in ddops/compat/coverage.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddops.compat import tables
from ddops.compat.coverage import Image, compiler_covers, covers, parse_image, parse_images

CCS = st.sampled_from(
    [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]
)
ISAS = st.one_of(st.none(), st.sampled_from([(8, 4), (8, 8), (9, 0), (9, 3)]))
IMAGES = st.builds(Image, st.booleans(), CCS, st.sampled_from(["", "a", "f"]), ISAS)


@pytest.mark.parametrize(
    ("target", "cc", "runs"),
    [
        ("sm_100", (10, 3), True), ("100a", (10, 3), False), ("sm_100f", (10, 3), True),
        ("103a", (10, 3), True), ("103f", (10, 0), False), ("sm_120", (12, 1), True),
        ("120f", (12, 1), True), ("120a", (12, 1), False), ("sm_100", (12, 0), False),
        ("90a", (9, 0), True), ("sm_90", (10, 0), False), ("12.0", (12, 0), True),
        ("sm_80", (8, 6), True), ("sm_86", (8, 0), False), ("sm_101", (10, 3), False),
        ("10.3a", (10, 3), True),
    ],
)  # fmt: skip
def test_cubins(target: str, cc: tuple[int, int], runs: bool) -> None:
    assert covers([parse_image(target)], cc, (9, 0)).runs is runs


@pytest.mark.parametrize(
    ("texts", "isa", "cc", "driver", "runs"),
    [
        (["12.0+PTX"], (8, 8), (12, 1), None, True),  # its cubin does
        (["compute_100"], (8, 8), (12, 0), (9, 0), True),
        (["compute_100"], (9, 3), (12, 0), (9, 0), False),  # error 222
        (["compute_100"], None, (12, 0), (9, 0), None),
        (["compute_100a"], (8, 8), (10, 3), (9, 0), False),
        (["compute_100f"], (8, 8), (10, 3), (9, 0), True),
        (["compute_120"], (8, 8), (10, 0), (9, 0), False),
    ],
)
def test_ptx(
    texts: list[str], isa: tuple[int, int] | None, cc: tuple[int, int],
    driver: tuple[int, int] | None, runs: bool | None,
) -> None:  # fmt: skip
    assert covers(parse_images(texts, isa), cc, driver).runs is runs


@given(st.lists(IMAGES, max_size=6), CCS, ISAS)
def test_more_code_never_covers_less(
    images: list[Image], cc: tuple[int, int], driver: tuple[int, int] | None
) -> None:
    for cut in range(len(images)):
        if covers(images[:cut], cc, driver).runs:
            assert covers(images, cc, driver).runs


@given(st.lists(IMAGES, max_size=6), CCS, ISAS)
def test_what_cannot_be_read_is_never_a_no(
    images: list[Image], cc: tuple[int, int], driver: tuple[int, int] | None
) -> None:
    assert covers([*images, None], cc, driver).runs in (True, None)
    assert covers([], cc, driver).runs is None


@given(IMAGES, CCS)
def test_cubins_stay_in_their_family(image: Image, cc: tuple[int, int]) -> None:
    if not image.ptx and image.cc[0] != cc[0]:
        assert covers([image], cc, (9, 9)).runs is False


@given(st.lists(IMAGES, min_size=1, max_size=6), CCS)
def test_a_newer_driver_never_takes_away(images: list[Image], cc: tuple[int, int]) -> None:
    if covers(images, cc, (8, 4)).runs:
        assert covers(images, cc, (9, 3)).runs


@given(st.text(max_size=12))
def test_any_text_is_an_image_or_none(text: str) -> None:
    found = parse_image(text)
    assert found is None or found.cc[0] >= 1


def test_compilers() -> None:
    assert compiler_covers("12.8.93", (12, 0)).runs is True
    assert compiler_covers("12.8.93", (10, 3)).runs is False
    assert compiler_covers("12.8", (10, 0), family=True).runs is False
    assert compiler_covers("13.0.88", (12, 1)).runs is True
    beyond = compiler_covers("14.0.1", (12, 0))
    assert beyond.runs is None
    assert "table ends at" in beyond.why
    assert compiler_covers("13.0", (13, 0)).runs is None
    assert compiler_covers("", (12, 0)).runs is None


def test_the_kernel_wheels_of_the_table() -> None:
    """What each covers, as asked of the wheels themselves."""
    want = {
        "0.3.21": {(9, 0), (10, 0), (12, 0)}, "0.4.1": {(9, 0), (10, 0), (12, 0)},
        "0.4.2.post2": {(9, 0), (10, 0), (10, 3), (12, 0)},
        "0.4.4": {(9, 0), (10, 0), (10, 3), (12, 0)}, "0.4.10": {(9, 0), (10, 0), (10, 3), (12, 0)},
    }  # fmt: skip
    for row in tables.table("kernels").rows:
        images = parse_images(row["common_ops"])
        ccs = [(9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]
        assert {cc for cc in ccs if covers(images, cc, None).runs} == want[row["version"]]
