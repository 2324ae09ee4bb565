#!/usr/bin/env python3
"""Writes the rows of Parquet files as JSON lines, which `data.path` reads.

    pip install pyarrow==26.0.1
    python tools/parquet_rows.py FILE.parquet ... --out rows.jsonl [--columns a,b] [--rows N]

A row is an object with the file's columns; lists and structures keep their shape, and a null stays
null. Files are read a row group at a time, so that memory is that of one.
"""

import argparse
import json
import math
import sys

import pyarrow.parquet as parquet


def checked(value, place):
    """The value, if it has a spelling in JSON."""
    if isinstance(value, dict):
        return {name: checked(of, place) for name, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked(of, place) for of in value]
    if isinstance(value, float) and not math.isfinite(value):
        sys.exit(f"{place}: {value} has no spelling in JSON; leave the column out by --columns")
    if value is None or isinstance(value, (str, int, float)):
        return value
    sys.exit(f"{place}: a {type(value).__name__} has no spelling in JSON; leave the column out by "
             "--columns")


def rows_of(path, columns):
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    for column in columns or []:
        if column not in names:
            sys.exit(f"{path}: has no column \"{column}\"; it has {', '.join(names)}")
    number = 0
    for batch in file.iter_batches(columns=columns):
        for row in batch.to_pylist():
            number += 1
            yield {name: checked(value, f"{path}: row {number}, \"{name}\"")
                   for name, value in row.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="Parquet files, whose rows follow each other")
    parser.add_argument("--out", required=True, help="file to write, ending in .jsonl")
    parser.add_argument("--columns", type=lambda names: names.split(","),
                        help="the columns to keep; all without it")
    parser.add_argument("--rows", type=int, help="the most rows to write")
    arguments = parser.parse_args()
    written = 0
    with open(arguments.out, "x", encoding="utf-8") as out:
        for path in arguments.files:
            for row in rows_of(path, arguments.columns):
                if arguments.rows is not None and written == arguments.rows:
                    break
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                written += 1
    print(f"{written} rows")


if __name__ == "__main__":
    main()
