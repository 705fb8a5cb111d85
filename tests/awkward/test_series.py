"""Series that are awkward in shape, in what is missing, in their numbers, or in their size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from cases import WAVE, Case, near, put, quantiles, same_as, table
from live import Answer, Live, forecast

SQUARES = [x * x for x in WAVE[:256]]
GAPS = [None if i % 7 == 3 else x for i, x in enumerate(WAVE)]
WAVE_ALONE = [math.sin(i / 5) for i in range(512)]


def band_goes_on(block: int) -> Callable[[Answer, Live], None]:
    def check(answer: Answer, _: Live) -> None:
        widths = quantiles(answer)[8, 0] - quantiles(answer)[0, 0]
        for edge in range(block, len(widths), block):
            assert widths[edge] * 10 >= widths[edge - 1]

    return check


def cut(answer: Answer, _: Live) -> None:
    assert answer.json["truncated"] is True
    assert answer.json["context_length"] == 32_768


def reversed_variates(answer: Answer, service: Live) -> None:
    other = service.ask(forecast([WAVE[:256], SQUARES]))
    np.testing.assert_allclose(quantiles(answer)[:, ::-1], quantiles(other), atol=2e-3)


@table(
    *[Case(f"{n} points", forecast([WAVE[:n]], 33)) for n in (1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 511)],
    *[Case(f"horizon {h}", forecast([WAVE], h)) for h in (1, 31, 32, 33, 767, 768, 769, 4096)],
    *[Case(f"block {b}", forecast([WAVE], 200, decode_block_size=b)) for b in (32, 64, 96, 4096)],
    Case("one point and the longest horizon", forecast([[3.5]], 4096), check=near(3.5)),
    Case("variates in reverse order", forecast([SQUARES, WAVE[:256]]), check=reversed_variates),
    Case("twenty variates", forecast([WAVE] * 20)),
    Case("a block as long as the horizon is one pass", forecast([WAVE], 200, decode_block_size=224),
         check=same_as([WAVE], 200, 0.0, decode_block_size=None)),
    Case("the longest block is one pass", forecast([WAVE], 200, decode_block_size=4096),
         check=same_as([WAVE], 200, 0.0, decode_block_size=None)),
    *[Case(f"the band in blocks of {b}", forecast([WAVE], 1024, decode_block_size=b), check=band_goes_on(b))
      for b in (32, 96, 256, 768)],
)  # fmt: skip
def test_every_length_is_forecast(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("an empty list", forecast([]), (422,), says=("variate",)),
    Case("an empty variate", forecast([[]]), (422,), says=("variate",)),
    Case("two empty variates", forecast([[], []]), (422,)),
    Case("an empty variate beside a full one", forecast([[], [1, 2]]), (422,), says=("0", "2")),
    Case("a scalar", forecast(5), (422,), says=("variate",)),
    Case("a string", forecast("1,2,3"), (422,), hides=("1,2,3",)),
    Case("an object", forecast({"a": [1, 2]}), (422,)),
    Case("three dimensions", forecast([[[1, 2]]]), (422,), says=("variate",)),
    Case("a list among numbers", forecast([1, [2], 3]), (422,)),
    Case("a null among variates", forecast([[1, 2], None]), (422,)),
    Case("variates of different lengths", forecast([[1, 2, 3, 4, 5], [9, 8]]), (422,), says=("5", "2", "null")),
    Case("a thousand lengths", forecast([[1] * n for n in range(1, 1000)]), (422,)),
    Case("no series", {"prediction_length": 8}, (422,), says=("series",)),
    Case("a variate with nothing in it", forecast([[1, 2, 3, 4], [None] * 4]), (422,), says=("series", "1")),
    Case("nothing but null", forecast([None] * 4), (422,), says=("series",)),
    Case("nothing but NaN", '{"series":[[NaN,NaN]]}', (422,), says=("series",)),
    Case("nothing in the part that is used", forecast([[1] + [None] * 40_000, [1.0] * 40_001]), (422,), says=("0",)),
    Case("says no gaps, has one", forecast([[1, None, 3, 4]], has_missing_values=False), (422,),
         says=("has_missing_values", "position 1")),
    Case("says no gaps, has a NaN", '{"series":[[1,2],[3,NaN]],"has_missing_values":false}', (422,),
         says=("variate 1, position 1",)),
)  # fmt: skip
def test_other_shapes_are_refused_with_what_is_expected(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("a missing tail", forecast([[100] * 300 + [None] * 20], 16), check=near(100)),
    Case("a whole patch missing at the end", forecast([[100] * 300 + [None] * 32], 16), check=near(100)),
    Case("a missing tail longer than what is there", forecast([[100] * 10 + [None] * 300], 16), check=near(100)),
    Case("leading missing values", forecast([[None] * 40 + WAVE[:64]]), check=same_as([WAVE[:64]])),
    Case("a whole patch of leading missing values", forecast([[None] * 32 + WAVE[:64]]), check=same_as([WAVE[:64]])),
    Case("very many leading missing values", forecast([[None] * 50_000 + WAVE[:64]]), check=same_as([WAVE[:64]])),
    Case("leading missing values and blocks", forecast([[None] * 96 + WAVE], 200, decode_block_size=64),
         check=same_as([WAVE], 200, decode_block_size=64)),
    Case("one gap", forecast([[*WAVE[:40], None, *WAVE[41:96]]])),
    Case("many gaps", forecast([GAPS])),
    Case("every other value", forecast([[x if i % 2 else None for i, x in enumerate(WAVE)]])),
    Case("one value and nothing else", forecast([[None] * 100 + [7.0] + [None] * 100], 16), check=near(7)),
    Case("only the first value", forecast([[7.0] + [None] * 511], 16), check=near(7)),
    Case("only the last value", forecast([[None] * 511 + [7.0]], 16), check=near(7)),
    Case("variates that are missing in turn", forecast([WAVE[:64] + [None] * 64, [None] * 64 + WAVE[:64]])),
    Case("says gaps, has none", forecast([WAVE], has_missing_values=True),
         check=same_as([WAVE], relative=0.0, has_missing_values=False)),
)  # fmt: skip
def test_missing_values_are_never_zeros(case: Case, service: Live) -> None:
    put(case, service)


@table(
    *[Case(f"constant {c:g}", forecast([[c] * 70], 40), check=near(c))
      for c in (0, 1, -7.5, 0.1, 1e-12, 1e6, 1e12, -1e300, 1.7e308, 5e-324)],
    Case("a constant beside a wave", forecast([[5.0] * 512, WAVE])),
    Case("two values far apart", forecast([[-1.7e308, 1.7e308]], 16)),
    Case("a big level, a small movement", forecast([[1e12 + 1000 * x for x in WAVE_ALONE]]),
         check=same_as([WAVE_ALONE], 8, 0.02, 1000, 1e12)),
    Case("seconds since 1970", forecast([[1.75e9 + 60 * i for i in range(512)]]),
         check=same_as([[float(i) for i in range(512)]], 8, 1e-3, 60, 1.75e9)),
    *[Case(f"times {a:g}", forecast([[a * x for x in WAVE]]), check=same_as([WAVE], 8, 1e-4, a))
      for a in (1e-12, 1e-6, 3.7, 1e6, 0.37, 1e12)],
    *[Case(f"plus {b:g}", forecast([[b + x for x in WAVE]]), check=same_as([WAVE], 8, 1e-4, 1, b))
      for b in (-1e3, 1e3, 1e6)],
    Case("one spike of 1e20", forecast([[1] * 511 + [1e20]])),
    Case("one spike of 1e308", forecast([[1] * 511 + [1e308]])),
    Case("zeros and one value", forecast([[0] * 500 + [1] + [0] * 11])),
    Case("mostly zeros", forecast([[float(i % 9 == 0) * i for i in range(512)]])),
    Case("negatives and a counter's reset", forecast([[-5, -3, 0, 50, 100, 150, 5, 55, 105, 155] * 8])),
    Case("denormals", forecast([[5e-324 * (i % 3) for i in range(128)]])),
    Case("alternating signs at the end of the doubles", forecast([[1e308 * (-1) ** i for i in range(128)]])),
)  # fmt: skip
def test_every_finite_number_is_forecast(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("more steps than are used", forecast([[1.5] * 262_145], 4096), check=cut),
    Case("a normal request after it", forecast([WAVE])),
    Case("exactly as many steps as are used", forecast([[1.5] * 32_768], 8)),
    Case("5,000 variates", forecast([[float(i % 7) for i in range(64)]] * 5000), (413,), says=("8192", "15000")),
    Case("variates times patches", forecast([WAVE] * 500, 8), (413,), says=("8192", "8500")),
    Case("a long horizon for many", forecast([[1.0]] * 100, 4096), (413,), says=("8192", "12900")),
    Case("health while nothing is wrong", "", method="GET", path="/health"),
)  # fmt: skip
def test_every_size_is_answered_or_refused_with_the_limit(case: Case, service: Live) -> None:
    put(case, service)
