// How soon each kind of device of a zebra order turns from the last layer's forward to its backward
// (plan/step/zebra_actions.h). Pure.
#pragma once

#include <cstdint>

namespace pagoda {

// A lag tells how many chunks the earlier work is ahead before a chunk goes on. As many as there
// are chunks less one, and more: all chunks go first.
struct Lags {
  int32_t head = 0;       // the last layer's attention, ahead of the head
  int32_t attention = 0;  // the head, ahead of the last layer's attention backward
  int32_t expert = 0;     // the last experts' forward, ahead of their backward
  bool operator==(const Lags&) const = default;
};

}  // namespace pagoda
