// Divides host memory among the classes of pages by what a slot of each saves in disk traffic.
//
// What a byte of a slot saves in a step of the usual plan in which every expert is used:
//   state        2 bytes: one read before its update and one write after it;
//   gradients    2 where updates wait for the norm of all (written in the backward, read in the
//                next forward); nothing where they are used up at once;
//   activations  2: written in the forward, read in the backward;
//   weights      3: read in the backward, read and written by the next update. The first two
//                layers' worth of slots save far more: updates run a layer ahead of use, and what
//                stays in the host until then is not read again, in every layer;
//   in-layer buffers that the device has no room for: up to 2 for every expert;
//   pages that the devices hold anyway save nothing.
// The first slots of a class save little, since pages only pass through them. So room in one class
// is worth more than in several.
//
// The plan's switches, the devices and eviction shift these numbers, so they are counted, not
// assumed. Classes do not compete for slots: one replay of a step with some slots of each gives a
// point on every class's curve of bytes over slots. A few such points give the segments of the
// curve's lower convex hull, and the memory goes to segments in the order of bytes saved per byte.
// The traffic of that choice is counted too, which adds a point to each curve where it matters, and
// so on. The division in proportion to bytes is among the points, and stays unless another saves a
// fiftieth of its traffic.
//
// The count knows less than a run does. Each step's uses are expected because the step before had
// them, but none is foreseen, so nothing is rehearsed either. No class keeps pages in the host,
// since SlotClass::host_kept follows from the division.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/step_plan.h"

namespace pagoda {

// kQuick takes fewer points and steps, for plans that are only compared with one another.
enum class DivisionEffort : uint8_t { kFull, kQuick };

struct DividedHost {
  int64_t bytes_without_disk = 0;  // host memory, fewest slots included, from which steps need no
                                   // disk
  int replays = 0;                 // replays of a few steps that the division took
};

// On entry `slots` holds the devices' slots and the fewest host slots. The function adds host slots
// of at most `left_bytes`, with `header_bytes` before each. First a quarter of these bytes gives
// every class that passes through the host slots in which its transfers overlap with work.
DividedHost divide_host(const StepPlan& plan, int64_t left_bytes, int64_t header_bytes,
                        std::vector<SlotClass>& slots,
                        DivisionEffort effort = DivisionEffort::kFull);

}  // namespace pagoda
