"""Tables in CSV files: what is read, and what is refused in one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from files.table import Table, TableError, read_table


def read(tmp_path: Path, text: str | bytes) -> Table:
    path = tmp_path / "series.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(path)


def test_a_column_is_a_variate_and_blanks_are_missing(tmp_path: Path) -> None:
    table = read(tmp_path, "a,b\n1,2\n,NaN\n3,1e3\n")
    assert table.names == ["a", "b"]
    np.testing.assert_array_equal(table.values, [[1, np.nan, 3], [2, np.nan, 1000]])
    assert table.times is None


@pytest.mark.parametrize(
    ("cells", "following"),
    [
        (["2026-01-01", "2026-01-02", "2026-01-03"], "2026-01-04T00:00:00"),
        (["2026-01-31", "2026-02-28", "2026-03-31"], "2026-04-30T00:00:00"),
        (["2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z"], "2026-01-01T01:30:00+00:00"),
        (["1790000000", "1790000060", "1790000120"], "2026-09-21T14:16:20"),
    ],
)
def test_a_column_of_times_gives_the_forecasts_times(tmp_path: Path, cells: list[str], following: str) -> None:
    table = read(tmp_path, "time,x\n" + "".join(f"{cell},1\n" for cell in cells))
    assert table.names == ["x"]
    times = table.future_times(1)
    assert times == [following]


def test_dates_are_known_without_a_telling_name(tmp_path: Path) -> None:
    assert read(tmp_path, "when,x\n2026-01-01,1\n2026-01-02,2\n2026-01-03,2\n").names == ["x"]


def test_steps_left_out_between_even_times_are_missing_values(tmp_path: Path) -> None:
    table = read(tmp_path, "time,x\n2026-01-05,1\n2026-01-06,2\n2026-01-09,5\n2026-01-10,6\n")
    np.testing.assert_array_equal(table.values, [[1, 2, np.nan, np.nan, 5, 6]])
    assert table.future_times(1) == ["2026-01-11T00:00:00"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file"),
        ("a,b\n", "found none"),
        ("1,2\n3,4\n", "expected a header"),
        ("a,b\n1,2\n3\n", "line 3: expected 2 cells as in the header, found 1"),
        ("a,b\n1,2\n3,4,5\n", "line 3: expected 2 cells as in the header, found 3"),
        ("a,b\n1,2\nx,4\n", "column 'a', row 2 after the header: expected a number or nothing, found 'x'"),
        ("a\n1\ninf\n", "column 'a', row 2 after the header: expected a number"),
        ("a;b\n1;2\n", "found semicolons or tabs"),
        ("a,a\n1,2\n", "a different name for each column"),
        ("time,x\n2026-01-01,1\n,2\n", "found a blank one"),
        ("a\n1_000\n", "expected a number"),
        ("a,b\n1,\n2,\n", "column 'b': expected at least one value"),
        ("time,x\n2026-01-02,1\n2026-01-02,2\n", "row 2: expected rising times, found the same time twice"),
        ("time,x\n2026-01-02,1\n2026-01-01,2\n", "row 2: expected rising times, found an earlier time"),
        ("time,x\nsoon,1\nlater,2\n", "expected ISO 8601 times or epoch seconds"),
        ("time\n2026-01-02\n", "a column for each variate"),
        (b"\xff\xfe\x00a", "UTF-8"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TableError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "series.csv" in str(error.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TableError, match=str(path)):
            read_table(path)
