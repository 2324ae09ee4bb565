// Divides the bytes of one place into slots, in proportion to what each class of pages still wants.
#pragma once

#include <cstdint>
#include <span>

namespace pagoda {

// One class's slots at the place during the division.
struct SlotShare {
  int32_t* slots = nullptr;  // not owned; grows
  int64_t slot_bytes = 0;
  int64_t most = 0;  // pages that could want a slot here
};

// Subtracts what it gives from `left_bytes`. Bytes that rounding leaves go to the first shares in
// which another slot fits.
void share_out(std::span<const SlotShare> shares, int64_t& left_bytes);

}  // namespace pagoda
