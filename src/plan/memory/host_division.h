// Divides host memory among the classes of pages by what a slot of each saves in disk traffic.
//
// What a byte of a slot saves in a step in which every expert is used, where the plan is the usual
// one:
//   state        2 bytes: one read before its update and one write after it;
//   gradients    2 where updates wait for the norm of all (written in the backward, read in the
//                next forward); nothing where they are used up at once;
//   activations  2: written in the forward, read in the backward;
//   weights      3: read in the backward, read and written by the next update. The first two
//                layers' worth of slots save far more: updates run a layer ahead of use, and what
//                stays in the host until then is not read again, in every layer;
//   in-layer buffers that the device has no room for: up to 2 for every expert;
//   and nothing what the devices hold anyhow.
// The first slots of a class save little, for pages pass through them: room in one class is worth
// more than in several.
//
// Switches of the plan, devices and eviction shift these numbers, so they are counted and not
// assumed. Classes do not compete for slots: one replay of a step with some slots of each gives a
// point on every class's curve of bytes over slots. From a few such points of each class come the
// segments of its lower convex hull, and the memory goes to segments in the order of bytes saved
// per byte; what that choice moves is counted too, which adds a point to each curve where it
// matters, and so on. The division in proportion to bytes is among the points, and stays unless
// another saves a fiftieth of what it moves.
//
// The count knows less than a run does: each step's uses are expected because the one before had
// them, but none is foreseen, so nothing is rehearsed either, and no class keeps pages in the host
// (SlotClass::host_kept is decided by what comes of the division).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/step_plan.h"

namespace pagoda {

// kQuick: fewer points and steps of each, for plans that are compared with one another and not run.
enum class DivisionEffort : uint8_t { kFull, kQuick };

struct DividedHost {
  int64_t bytes_without_disk = 0;  // of the host, fewest slots included: such steps need no disk
  int replays = 0;                 // that it took, of a few steps each
};

// `slots`: what devices have, and the fewest slots in the host; host slots are added for at most
// `left_bytes`, with `header_bytes` before each. A quarter of that goes first to slots in which
// transfers overlap with work, for every class that passes through the host.
DividedHost divide_host(const StepPlan& plan, int64_t left_bytes, int64_t header_bytes,
                        std::vector<SlotClass>& slots,
                        DivisionEffort effort = DivisionEffort::kFull);

}  // namespace pagoda
