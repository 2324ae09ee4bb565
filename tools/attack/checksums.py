"""The checksums of pagoda's files, so that a forgery has the right ones."""

import ctypes
import ctypes.util


class _Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def _xxhash():
    name = ctypes.util.find_library("xxhash")
    if name is None:
        return None
    library = ctypes.CDLL(name)
    library.XXH3_128bits.restype = _Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


_LIBRARY = _xxhash()


def can_xxh3():
    return _LIBRARY is not None


def xxh3_hex(data):
    """XXH3-128 as 32 hex digits. Needs the system's libxxhash."""
    found = _LIBRARY.XXH3_128bits(bytes(data), len(data))
    return f"{found.high:016x}{found.low:016x}"


def _crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
