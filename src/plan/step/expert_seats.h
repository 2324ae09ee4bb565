// Chooses the device that computes each expert of a layer, its seat, by the rows that routing gave
// the experts (ES-MoE, section 4.2): the longest first, each to the device that would end first
// with it. Experts whose weights wait in the host may have another seat in every step. No bit of a
// result follows from it. Pure.
//
// Beside its seat an expert may be a guest of devices that attend (HEXA-MoE 3.3, data-centric): its
// weights are uploaded there too, or on other ranks received, each such device multiplies the rows
// of its own tokens where they are, and its part of the gradient's sum goes to the seat. A row that
// is computed on another device travels there and back in both phases; weights travel once in each
// phase, and their fp32 gradient back. RunShape::sharing says whether rows or weights do, or
// whichever has fewer bytes: bf16 weights of 3 d f elements have 24 d f, a row 10 d + 8, so that
// they travel for more than about 2.4 f rows of an expert and a device; where rows stay until their
// backward (RunShape::kept_rows) one has 8 d + 8, and that is 3 f. Weights that stay until then
// (RunShape::guest_layers) travel once, and have 18 d f.
//
// Guests on other ranks have room for the experts of two layers at least, or of as many as there is
// memory for (HEXA-MoE's pipeline-shared cache); or where that is short, for a layer's
// waves in flight. With room for layers weights come a layer ahead of their use, while the layer
// before is in work. In the backward all routing is known, and so is which. In the forward those
// come that the routing of the step before would have as guests: an expert that is a guest again
// came ahead, one that is none came for nothing, and one that was none comes when it is due. Who is
// a guest follows from the step's own routing all the same: of kAuto, an expert near the bound may
// come for nothing now and then, and has about as many bytes either way.
//
// RunShape::exchange is the order of rows only (plan/rounds/exchange_order.h). A guest's rows stay
// where they are, so no parcel has them: messages of HALO and Aurora's rounds carry the other rows
// of a wave, if there are any. Weights and parts of gradients go straight from device to device,
// weights from their home's host, ahead of the wave's rows and behind them. The choice is the same
// in each exchange: HALO passes rows on within a node, but no more of them leave it.
//
// On equal devices the busiest has at most 4/3 - 1/(3 devices) of the least possible (Graham 1969);
// 5, 5, 4, 4, 3, 3, 3 on three devices reach that bound. On unequal ones it is at most 2 devices /
// (devices + 1) (Gonzalez, Ibarra and Sahni 1977).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/action.h"
#include "plan/step/expert_blocks.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// An expert's weights on a device that computes with them.
struct ExpertUse {
  int64_t record = 0;
  int device = 0;
};

// [expert] its device. Among equal experts the lower comes first, among equal ends the lower
// device. `rows`: (experts), not below 0; `speeds`: [device], above 0; `taken`: [device] the rows
// that it has already, or empty for none, as the bounds above assume. O(E (log E + devices)).
std::vector<int> place_longest_first(std::span<const int64_t> rows, std::span<const double> speeds,
                                     std::span<const int64_t> taken = {});

// Places longest first, then repeats, while that helps and at most kMostExchanges times, the best
// exchange of the busiest device with any other: an expert for another one or for none. That is
// closer to balance where experts are few (four a device), and never further. O(E^2) for each.
inline constexpr int kMostExchanges = 32;
std::vector<int> place_balanced(std::span<const int64_t> rows, std::span<const double> speeds,
                                std::span<const int64_t> taken = {});

// Leaves as many experts at home as it finds: from there it makes the same exchanges, until the
// busiest device ends within 2 % of when it would by place_balanced(), or else it takes those
// seats. An expert that has the same seat in every step finds its weights there. `home`: [expert]
std::vector<int> place_near_home(std::span<const int64_t> rows, std::span<const double> speeds,
                                 std::span<const int64_t> taken, std::span<const int> home);

// When the busiest device ends, in rows over speed.
double busiest_device(std::span<const int64_t> rows, std::span<const int> seats,
                      std::span<const double> speeds);

// The seats of a layer's experts in a run. Where RunShape::seat_speeds says so, neighbours that
// fill about a wave are placed together by place_near_home(), since devices go from wave to wave
// together (plan/step/expert_blocks.h); what a device has more in one it has less in the next. An
// expert's weights are in the host of its home's rank, so it has its seat on a device of that. Else
// each expert is at home. `rows`: (num_experts), or empty while routing is unknown, which leaves
// all at home. `taken`: [device] rows that it computes anyway, or empty for none.
std::vector<int> layer_seats(const RunShape& shape, int64_t layer, std::span<const int64_t> rows,
                             std::span<const int64_t> taken = {});

// Bytes that travel in a training step for a row that another device computes, and keeps from the
// forward or gets again; and in place of such rows for the weights of an expert, and for their
// gradient if it trains.
int64_t travelling_row_bytes(const RunShape& shape, bool kept);
int64_t travelling_weight_bytes(const RunShape& shape, int64_t record);

// Where a layer's rows are computed. Seats are those of the rows that no guest has. `routing`: the
// microbatches'.
LayerSeats layer_seats(const RunShape& shape, int64_t layer, Microbatches microbatches,
                       const LayerRouting& routing);

// The guests on other ranks than their homes that have rows, in the order of records and devices.
std::vector<ExpertUse> far_guests(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                  const LayerRouting& routing);

// What of the routing goes to experts' seats: all but the rows of their guests.
LayerRouting routing_to_seats(const RunShape& shape, Microbatches microbatches,
                              const LayerSeats& seats, LayerRouting routing);
// (num_experts) the rows of it.
std::vector<int64_t> rows_at_seats(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                   const LayerRouting& routing);

// How the rows of these microbatches go through a layer's experts. `routing`: the microbatches'.
std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing);
// The same, where the seats are known.
std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing, const LayerSeats& seats);

}  // namespace pagoda
