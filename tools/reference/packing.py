"""Best-fit-decreasing packing again in Python, as src/data/packing.h describes it.

Source: Johnson 1973; for training data Ding et al. 2024, arXiv 2404.10830. reference_test.py
compares with rows that tests/data/packing_test.cc holds too.
"""

from bisect import bisect_left, insort


def pack(lengths, sequence_len):
    """Rows of (document, number): tokens [number * sequence_len, ...) of a document. A document of
    length 0 is left out."""
    rests = [d for d in range(len(lengths)) if lengths[d] % sequence_len]
    rests.sort(key=lambda d: -(lengths[d] % sequence_len))  # stable, longest first
    rows_by_room, rooms, row_of, num_rows = {}, [], {}, 0
    for document in rests:
        rest = lengths[document] % sequence_len
        place = bisect_left(rooms, rest)
        if place == len(rooms):
            room, row, num_rows = sequence_len, num_rows, num_rows + 1
        else:
            room = rooms[place]
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                del rows_by_room[room]
                rooms.pop(place)
        row_of[document] = row
        if room > rest:
            if room - rest not in rows_by_room:
                rows_by_room[room - rest] = []
                insort(rooms, room - rest)
            rows_by_room[room - rest].append(row)
    return _numbered(lengths, sequence_len, row_of)


def _numbered(lengths, sequence_len, row_of):
    """Rows in the order of the first document in them."""
    rows, opened = [], {}
    for document, length in enumerate(lengths):
        whole = length // sequence_len
        rows += [[(document, i)] for i in range(whole)]
        if document in row_of:
            row = row_of[document]
            if row not in opened:
                opened[row] = len(rows)
                rows.append([])
            rows[opened[row]].append((document, whole))
    return rows
