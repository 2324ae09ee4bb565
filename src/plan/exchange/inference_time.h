// Time of one MoE layer's forward pass on devices that each hold experts: gate, first all-to-all
// (dispatch), experts, second all-to-all (combine), aggregation (Aurora sections 4.1, 5 and 6.1).
// Computation and communication of one model do not overlap; two models on the same devices
// alternate. All-to-alls take the time of plan/rounds/transmission_order.h; combine takes as long
// as dispatch, since its traffic is the same, reversed.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

// There are as many parts of the tokens as experts. In the paper part e passes the gate and is
// aggregated where expert e lives. Seconds are those of a device of speed 1.
struct MoeLayerLoad {
  SquareMatrix<double> traffic_bytes;  // (e, f): bytes of part e of the tokens for expert f
  std::vector<double> gate_s, aggregate_s;  // [part]
  std::vector<double> ffn_s;                // [expert]
};

struct ServingDevice {
  double bytes_per_s = 0;  // each way, both at once
  double speed = 0;        // speed of computation
};

// kUsage unless there is a device and all rates are finite and above 0.
Status check_devices(std::span<const ServingDevice> devices);

// The experts of one layer and their places: [expert] an index into the devices. Several experts
// may share a device, which computes one after the other.
struct PlacedLayer {
  const MoeLayerLoad& load;
  std::span<const int> device_of_expert;
  std::span<const int> device_of_part = {};  // empty: where the expert of the same number is
};

// [device] seconds.
struct DevicePhases {
  std::vector<double> gate_s, ffn_s, aggregate_s;
  // The time of dispatch, and again of combine: that of sending or receiving, whichever is longer,
  // with one partner at a time. The largest is line_bound(link_seconds()).
  std::vector<double> all_to_all_s;
};

// O(n^2). kUsage for invalid amounts, layers without experts, and counts or places that do not
// agree.
Result<DevicePhases> device_phases(const PlacedLayer& layer,
                                   std::span<const ServingDevice> devices);

// Equation (1): a device may send as soon as its own gate or experts are done.
double exclusive_time_s(const DevicePhases& phases);

// One model's phases in table 2: the longest of all devices, or those of one device.
struct ModelPhases {
  double gate_s = 0, all_to_all_s = 0, ffn_s = 0, aggregate_s = 0;
};

struct ColocatedPhases {
  ModelPhases a, b;
  double both_all_to_all_s = 0;  // for the sum of both models' traffic: |N^a + N^b| = |C^a + C^b|
};

// The ends of the phases of two models on the same devices, from the moment when model a has passed
// its gate: table 2, with two corrections. Its first row is G^b. And an all-to-all ends no sooner
// than if it began with its inputs and met no other, which the table leaves out for N^b, C^a and
// C^b; C^a and C^b together end no sooner than |C^a + C^b| after the end of F^a.
struct ColocatedTimes {
  double gate_b_s = 0, dispatch_a_s = 0, ffn_a_s = 0, dispatch_b_s = 0, ffn_b_s = 0;
  double combine_a_s = 0, aggregate_a_s = 0, combine_b_s = 0, aggregate_b_s = 0;
  double gate_a_s = 0;  // the next layer's gate: equation (4), the inference time
};
ColocatedTimes colocated_times(const ColocatedPhases& phases);

// The longest phases of two layers on the same devices, and the all-to-all of both. O(n^2).
Result<ColocatedPhases> colocated_phases(const PlacedLayer& a, const PlacedLayer& b,
                                         std::span<const ServingDevice> devices);

}  // namespace pagoda
