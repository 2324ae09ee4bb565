// The layout of a device's workspace: what must not share memory does not, and counting its bytes
// takes no memory and gives what the layout takes.
#include "model/workspace.h"

#include <gtest/gtest.h>

#include "model/json.h"
#include "model/tensors.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

ModelConfig tiny() { return ModelConfig::parse(tiny_config().dump(), "config").take(); }

WorkspaceSize generating_in_training() {
  WorkspaceSize size;
  size.microbatches = 4;
  size.microbatch_tokens = 8;
  size.training = true;
  size.cache = {.sequences = 2, .positions = 4096};
  return size;
}

// Where it begins is never read, so it need not be memory.
std::byte* somewhere() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 40); }

// A pass of generation computes layers that a step keeps, while it fills the cache.
TEST(Workspace, KeptLayersLieBesideTheCache) {
  const ModelConfig config = tiny();
  const ModelShape model = model_shape(config);
  WorkspaceSize size = generating_in_training();
  size.saved_layers = model.num_layers();
  WorkspaceArena arena{somewhere()};
  Workspace w;
  w.lay_out(arena, model, size, 0);
  const auto* cache = static_cast<const std::byte*>(w.cache.layers);
  // Keys and values of two sequences of 4,096 positions.
  const int64_t layer = int64_t{2} * 4096 * 2 * config.num_kv_heads * config.head_dim;
  const int64_t bytes = model.num_layers() * layer * dtype_bytes(size.dtype);
  for (int64_t b = 0; b < size.microbatches; ++b) {
    const auto* kept = static_cast<const std::byte*>(w.mlp_of(0, b).gate_up);  // a dense layer
    EXPECT_TRUE(kept < cache || kept >= cache + bytes) << b;
  }
}

TEST(Workspace, CountsWhatItTakes) {
  const ModelShape model = model_shape(tiny());
  for (const std::vector<int>& devices : {std::vector<int>{}, {0, 0, 1, 1}, {0, 1, 1, 1}}) {
    for (const int64_t saved : {int64_t{0}, int64_t{1}, model.num_layers()}) {
      WorkspaceSize size = generating_in_training();
      size.sums.shards = 4;
      size.shard_device = devices;
      size.saved_layers = saved;
      for (const int device : {0, 1}) {
        WorkspaceArena taken{somewhere()}, counted;
        for (WorkspaceArena* arena : {&taken, &counted}) {
          Workspace step;
          ExpertSpace expert;
          lay_out_workspace(*arena, model, size, device, step, expert);
        }
        EXPECT_EQ(counted.used, taken.used);
      }
    }
  }
  WorkspaceSize huge = generating_in_training();
  huge.microbatches = int64_t{1} << 40;  // a number for each would not fit in memory
  huge.saved_layers = model.num_layers();
  EXPECT_GT(workspace_bytes(model, huge, 0), huge.microbatches);
}

}  // namespace
}  // namespace pagoda
