// Stages of a pipeline: groups of neighbouring devices that share a run's layers. All of a layer is
// on the devices of its stage, attention and experts. The rows that a layer gives travel to the
// next one's devices where these are of another stage, and their gradients back.
//
// Chunks of microbatches follow each other through the stages in one of three orders
// (plan/step/pipeline_actions.h):
// - GPipe (Huang et al. 2019): a stage takes all chunks forward, then all of them backward.
// - 1F1B (PipeDream-Flush, Narayanan et al. 2021): as soon as a stage has its first backward, one
//   forward follows one backward, so that stage s of P keeps activations of P - s chunks at most.
// - Breadth-first (Lamy-Poirier 2023): a stage takes all chunks through a layer before its next
//   one, so that weights that are paged are read once in each phase, as without stages, and not
//   once for each chunk. Its layers are dealt to the stages in turns, so that a chunk comes to
//   every stage soon.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagoda {

// Neighbouring devices.
struct DeviceRange {
  int first = 0, count = 0;
  int end() const { return first + count; }
  bool contains(int device) const { return device >= first && device < end(); }
};

enum class PipelineOrder : uint8_t { kGpipe, kOneForwardOneBackward, kBreadthFirst };

struct Stages {
  int count = 1;
  PipelineOrder order = PipelineOrder::kBreadthFirst;
  std::vector<int> layers = {};   // [layer] its stage; empty: all are the first's
  std::vector<int> devices = {};  // [device] its stage, ascending; empty: likewise
  // [stage] the layers that it takes in a unit of time; empty: as many as others.
  std::vector<double> speeds = {};

  bool several() const { return count > 1; }
  // A stage takes a chunk through all of its layers before the next chunk, so that sums of
  // gradients of all these layers wait side by side.
  bool chunk_by_chunk() const { return several() && order != PipelineOrder::kBreadthFirst; }
  int of_layer(int64_t layer) const {
    return layers.empty() ? 0 : layers[static_cast<size_t>(layer)];
  }
  int of_device(int device) const {
    return devices.empty() ? 0 : devices[static_cast<size_t>(device)];
  }
  // How many layers before this one its stage has.
  int64_t ordinal(int64_t layer) const;
  // [stage] how many layers it has, of so many in the run; and the most of them.
  std::vector<int64_t> layer_counts(int64_t num_layers) const;
  int64_t most_layers(int64_t num_layers) const;
};

// Copies of a model's experts (data parallelism of groups of devices, as of HeterMoE's zebra
// groups, 4.1, 5): the devices of each stage are divided into groups of neighbours, of equal size
// or one device more or less, and each group has all experts of the stage's layers. A row is
// computed in the group whose device attends to it, so no row leaves its group. What a group has to
// do follows from the shards that its devices attend to.
//
// A copy is what a dense record has on each device that attends: weights alone. State and gradient
// are at the home, one of the devices that compute the expert; groups have as many homes. Weights
// travel from there to the other ranks once after each update (plan/step/weight_copies.h), and each
// group's part of the gradient is a sum of its shards, of the tree of plan/sums/sum_shape.h. So a
// device of another group is to the home what a guest is (plan/step/expert_seats.h).
struct ExpertCopies {
  int count = 1;
  std::vector<int> devices = {};  // [device] its group among those of its stage; empty: the first
  // [copy][record] the device of the group that computes the expert; -1: the record is none. Empty:
  // there is one copy, and experts are at home.
  std::vector<std::vector<int>> seats = {};

  bool several() const { return count > 1; }
  int of_device(int device) const {
    return devices.empty() ? 0 : devices[static_cast<size_t>(device)];
  }
};

// The devices of a stage: as many as of the others, or one more or less.
DeviceRange devices_of_stage(int stage, int stages, int devices);

// Divides layers and devices among so many stages: neighbouring devices as evenly as it goes, and
// layers by deal() (plan/step/assignment.h) in proportion to the stages' speeds, but each has one
// (HeterMoE, section 6.3: faster GPUs are assigned more layers). Stages have neighbouring layers;
// breadth-first, layers in turns, in which those of each stage are spread over all of them. speeds:
// [stage] as Stages::speeds. REQUIRES: at least a layer and a device for each stage; speeds are
// above 0.
Stages divide_into_stages(int count, PipelineOrder order, int64_t num_layers, int devices,
                          std::span<const double> speeds = {});

}  // namespace pagoda
