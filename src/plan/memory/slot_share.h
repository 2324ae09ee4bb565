// Gives out the bytes of one place as slots, in proportion to what each class of pages still wants.
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

// Takes what it gives from `left_bytes`. What rounding leaves goes to whoever it still fits, in the
// order of the shares.
void share_out(std::span<const SlotShare> shares, int64_t& left_bytes);

}  // namespace pagoda
