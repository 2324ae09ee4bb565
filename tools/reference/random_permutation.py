"""base/random.h again in Python: Philox4x32-10 and the Feistel permutation of rows.

Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
reference_test.py compares with values printed by the C++ functions.
"""

PURPOSE_INIT = 1
PURPOSE_SHUFFLE = 2

_MASK32 = 0xFFFFFFFF
_FEISTEL_ROUNDS = 6


def philox(seed, purpose, a, b):
    """Four 32-bit words for counter (a, b), each 64 bits, under (seed, purpose)."""
    k0 = seed & _MASK32
    k1 = ((seed >> 32) ^ (purpose * 0x85EBCA6B)) & _MASK32
    c = (a & _MASK32, (a >> 32) & _MASK32, b & _MASK32, (b >> 32) & _MASK32)
    for _ in range(10):
        p0 = 0xD2511F53 * c[0]
        p1 = 0xCD9E8D57 * c[2]
        c = ((p1 >> 32) ^ c[1] ^ k0, p1 & _MASK32, (p0 >> 32) ^ c[3] ^ k1, p0 & _MASK32)
        k0 = (k0 + 0x9E3779B9) & _MASK32
        k1 = (k1 + 0xBB67AE85) & _MASK32
    return c


def random_permutation(seed, epoch, n, i):
    """The image of i under the permutation of [0, n) keyed by (seed, epoch)."""
    assert 0 <= i < n
    half_bits = 1
    while half_bits < 31 and (1 << (2 * half_bits)) < n:
        half_bits += 1
    mask = (1 << half_bits) - 1
    x = i
    while True:
        left, right = x >> half_bits, x & mask
        for round_idx in range(_FEISTEL_ROUNDS):
            r = philox(seed, PURPOSE_SHUFFLE, right, epoch << 8 | round_idx)
            left, right = right, left ^ ((r[0] << 32 | r[1]) & mask)
        x = left << half_bits | right
        if x < n:
            return x
