// The roof of Adam: its streams with next to no arithmetic. A copy (STREAM) is not the roof of an
// update in place, which moves up to twice the bytes a second: no line is read only to be
// overwritten, and more streams run side by side.
#pragma once

#include <cstdint>

#include "optim/adam.h"

namespace pagoda {

// Bytes that one update of a record moves: the gradient in, weights and state in and out.
int64_t adam_bytes(const StateLayout& layout);

// Reads the gradient and flips the bits `flip` in all else, in the order and with the prefetches of
// adam_update's loop, over the part of a record that belongs to thread `share` of `shares`. Returns
// a value that depends on all that was read. REQUIRES: bf16 weights; a whole number of moment
// blocks.
uint64_t stream_record(const AdamRecord& record, const void* gradient, uint64_t flip,
                       int64_t share, int64_t shares);

}  // namespace pagoda
