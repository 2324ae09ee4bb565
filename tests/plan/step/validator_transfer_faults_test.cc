// The validator over plans of several devices that are broken on purpose: rows, parcels and sums
// that go astray between devices, chunks and stages.
#include <gtest/gtest.h>

#include "tests/plan/step/broken_plan.h"

namespace pagoda {
namespace {

TEST(Validator, SeesRowsThatDoNotArrive) {
  static const Recorded two(false, 2, 2);
  expect_broken(
      PlanRule::kMatched, "rows are received that nobody has sent",
      [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kSend))); }, two);
  expect_broken(
      PlanRule::kMatched, "rows are sent that nobody receives",
      [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kReceive))); }, two);
  expect_broken(
      PlanRule::kMatched, "a receive takes another device's rows",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kReceive))].task;
        std::swap(t.device, t.peer);
      },
      two);
  expect_broken(
      PlanRule::kMatched, "fewer bytes are received",
      [](Steps& steps) { steps[1][find(steps, of_kind(TaskKind::kReceive))].task.bytes -= 2; },
      two);
  expect_broken(
      PlanRule::kInputs, "more bytes than the rows'",
      [](Steps& steps) {
        const size_t i = find(steps, of_kind(TaskKind::kSend));
        steps[1][i].task.bytes += 2;
        steps[1][i + 1].task.bytes += 2;
      },
      two);
}

// Three devices that send parcels in several parts.
TEST(Validator, SeesPartsThatDoNotMeet) {
  static const Recorded three(false, 4, 3, false, 1, false, true);
  const auto continues = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.first_byte > 0;
  };
  const auto takes = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kReceive && t.task.first_byte > 0;
  };
  expect_broken(
      PlanRule::kInputs, "a part is left out",
      [&](Steps& steps) {
        const size_t i = find(steps, continues);
        erase(steps, i + 1);
        erase(steps, i);
      },
      three);
  expect_broken(
      PlanRule::kInputs, "a part is sent again",
      [&](Steps& steps) {
        const size_t i = find(steps, continues);
        steps[1][i].task.first_byte = steps[1][i + 1].task.first_byte = 0;
      },
      three);
  expect_broken(
      PlanRule::kMatched, "a part arrives in the place of another",
      [&](Steps& steps) { steps[1][find(steps, takes)].task.first_byte -= 4; }, three);
  expect_broken(
      PlanRule::kInputs, "a part that arrives wipes out those before it",
      [&](Steps& steps) { steps[1][find(steps, takes)].task.uses[0].access = Access::kCreate; },
      three);
}

// Rows of which all have stayed from the forward.
TEST(Validator, SeesKeptRowsThatGoWrong) {
  static const Recorded two(false, 2, 2, true, 1, false, false, 1 << 13);
  const auto kept_of = [](const Task& task) {
    const auto used = task.used();
    return std::find_if(used.begin(), used.end(), [](const PageUse& use) {
      const PageTable& pages = two.made->pages;
      return pages.classes[pages.pages[use.page].slot_class].kind == PageKind::kKeptRows;
    });
  };
  const auto reads = [&](const PlacedTask& t) {
    return t.task.kind == TaskKind::kExpertBackward && kept_of(t.task) != t.task.used().end();
  };
  const auto sends_gradients = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.phase == Phase::kBackward && t.task.wave >= 0;
  };
  const auto hands_out = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kDispatchBackward && t.task.rows > 0;
  };
  expect_broken(
      PlanRule::kInputs, "inputs are of another wave",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, reads)].task;
        ++t.uses[static_cast<size_t>(kept_of(t) - t.used().begin())].page;
      },
      two);
  expect_broken(
      PlanRule::kInputs, "inputs are sent again",
      [&](Steps& steps) {
        const size_t i = find(steps, sends_gradients);
        const int64_t row = two.made->shape.hidden_size * two.made->shape.dtype_bytes;
        for (const size_t end : {i, i + 1}) {
          steps[1][end].task.bytes += steps[1][end].task.rows * row;
        }
      },
      two);
  expect_broken(
      PlanRule::kInputs, "inputs are handed out again",
      [&](Steps& steps) {
        PlacedTask& placed = steps[1][find(steps, hands_out)];
        Task& t = placed.task;
        const int stage = two.made->shape.stage_of(t.layer);
        t.use(two.made->pages.normed(stage, t.microbatch), Place::on_device(t.device),
              Access::kRead);
        placed.slots.push_back(0);
      },
      two);
}

TEST(Validator, SeesSumsInAnotherOrder) {
  const auto begins = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kRouteBackward && t.task.first;
  };
  expect_broken(PlanRule::kSumOrder, "two sums are not added",
                [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kAddSums))); });
  expect_broken(PlanRule::kSumOrder, "two sums are added twice",
                [](Steps& steps) { repeat(steps, find(steps, of_kind(TaskKind::kAddSums))); });
  expect_broken(PlanRule::kSumOrder, "two sums change places", [](Steps& steps) {
    Task& t = steps[1][find(steps, of_kind(TaskKind::kAddSums))].task;
    std::swap(t.uses[0].page, t.uses[1].page);
  });
  expect_broken(PlanRule::kSumOrder, "a shard begins in the sum of the one before",
                [&](Steps& steps) { steps[1][find(steps, begins, 1)].task.first = false; });
  expect_broken(PlanRule::kSumOrder, "a shard is summed elsewhere", [&](Steps& steps) {
    Task& t = steps[1][find(steps, begins, 1)].task;
    t.uses[t.num_uses - 1].page = steps[1][find(steps, begins, 0)].task.uses[t.num_uses - 1].page;
  });
}

// What a layer's attention adds to a sum comes before others read it, and to the same one.
TEST(Validator, SeesSumsWithoutAttention) {
  expect_broken(PlanRule::kInputs, "attention comes after the addition", [&](Steps& steps) {
    // The first additions of a step are the head's, and a shared expert's have no attention.
    const auto of_layer = [](const PlacedTask& t) {
      const Task& task = t.task;
      return task.kind == TaskKind::kAddSums && task.layer >= 0 && task.first_element == 0;
    };
    const size_t add = find(steps, of_layer);
    size_t i = add;
    while (steps[1][i].task.kind != TaskKind::kAttentionBackward) --i;
    std::rotate(steps[1].begin() + static_cast<int64_t>(i),
                steps[1].begin() + static_cast<int64_t>(i) + 1,
                steps[1].begin() + static_cast<int64_t>(add) + 1);
  });
  expect_broken(PlanRule::kInputs, "a sum lacks an element", [](Steps& steps) {
    --steps[1][find(steps, of_kind(TaskKind::kAddSums))].task.elements;
  });
  expect_broken(PlanRule::kInputs, "a sum begins elsewhere", [](Steps& steps) {
    ++steps[1][find(steps, of_kind(TaskKind::kAddSums))].task.first_element;
  });
}

// Chunks by themselves: sums of experts that are lost, mixed up or taken too soon.
TEST(Validator, SeesChunksThatGoWrong) {
  static const Recorded zebra(false, 2, 2, true);
  const auto goes_on = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kExpertBackward && !t.task.first;
  };
  expect_broken(
      PlanRule::kInputs, "an expert's gradient begins again in a later chunk",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.first = true;
        t.uses[t.num_uses - 1].access = Access::kCreate;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "what it adds to is dropped",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.uses[t.num_uses - 1].access = Access::kCreate;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "chunks of an expert are swapped",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, goes_on)].task;
        t.first_microbatch = 0;
        Task& before = steps[1][find(steps, of_kind(TaskKind::kExpertBackward))].task;
        before.first_microbatch = static_cast<int32_t>(zebra.made->shape.microbatches) / 2;
      },
      zebra);
  expect_broken(
      PlanRule::kInputs, "a gradient is finished before the last chunk",
      [&](Steps& steps) {
        const size_t last = find(steps, goes_on);
        const int64_t record = steps[1][last].task.record;
        const size_t gradient = find(steps, [&](const PlacedTask& t) {
          return t.task.kind == TaskKind::kGradient && t.task.record == record;
        });
        const PlacedTask early = steps[1][gradient];
        erase(steps, gradient);
        steps[1].insert(steps[1].begin() + static_cast<int64_t>(last), early);
      },
      zebra);
}

// Two devices that both attend.
TEST(Validator, SeesParcelsAndSumsThatGoAstray) {
  static const Recorded two(false, 2, 2);
  expect_broken(
      PlanRule::kInputs, "the second device does not sort its rows",
      [](Steps& steps) {
        erase(steps, find(steps, [](const PlacedTask& t) {
                return t.task.kind == TaskKind::kIndex && t.task.device == 1;
              }));
      },
      two);
  expect_broken(
      PlanRule::kInputs, "an expert is computed away from its seat",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kExpertBackward))].task;
        t.device = static_cast<uint8_t>(1 - t.device);
      },
      two);
  const auto travels = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.elements > 0;
  };
  for (const TaskKind kind : {TaskKind::kPlaceRows, TaskKind::kPackRows}) {
    expect_broken(
        PlanRule::kInputs, "a parcel is left out",
        [&](Steps& steps) { erase(steps, find(steps, of_kind(kind))); }, two);
    expect_broken(
        PlanRule::kInputs, "a parcel has another's rows",
        [&](Steps& steps) { ++steps[1][find(steps, of_kind(kind))].task.rows; }, two);
    expect_broken(
        PlanRule::kInputs, "a parcel is taken for another device's",
        [&](Steps& steps) {
          Task& t = steps[1][find(steps, of_kind(kind))].task;
          t.peer = t.device;
        },
        two);
  }
  expect_broken(
      PlanRule::kSumOrder, "a sum is not sent",
      [&](Steps& steps) {
        const size_t i = find(steps, travels);
        erase(steps, i + 1);
        erase(steps, i);
      },
      two);
  expect_broken(
      PlanRule::kInputs, "a part of a sum is sent",
      [&](Steps& steps) {
        const size_t i = find(steps, travels);
        steps[1][i].task.bytes -= 4;
        steps[1][i + 1].task.bytes -= 4;
      },
      two);
  expect_broken(
      PlanRule::kInputs, "a page is used where another device has it",
      [](Steps& steps) {
        Task& t = steps[1][find(steps, of_kind(TaskKind::kAttention))].task;
        for (size_t i = 0; i < t.num_uses; ++i) t.uses[i].place.device ^= 1;
      },
      two);
}

// Two stages of a device each, one forward, one backward.
TEST(Validator, SeesStagesThatDoNotMeet) {
  static const Recorded stages(false, 2, 2, false, 2);
  const auto crosses = [](Phase phase) {
    return [phase](const PlacedTask& t) {
      return t.task.kind == TaskKind::kSend && t.task.wave < 0 && t.task.microbatch >= 0 &&
             t.task.phase == phase;
    };
  };
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    expect_broken(
        PlanRule::kInputs, "rows do not go on to the next stage",
        [&](Steps& steps) {
          const size_t i = find(steps, crosses(phase));
          erase(steps, i + 1);
          erase(steps, i);
        },
        stages);
    expect_broken(
        PlanRule::kMatched, "what was sent is not received",
        [&](Steps& steps) { erase(steps, find(steps, crosses(phase)) + 1); }, stages);
    expect_broken(
        PlanRule::kMatched, "two microbatches are received in the other order",
        [&](Steps& steps) {
          const size_t i = find(steps, crosses(phase)), j = find(steps, crosses(phase), 1);
          std::swap(steps[1][i + 1], steps[1][j + 1]);
        },
        stages);
    expect_broken(
        PlanRule::kInputs, "half of the rows are sent",
        [&](Steps& steps) {
          const size_t i = find(steps, crosses(phase));
          steps[1][i].task.bytes /= 2;
          steps[1][i + 1].task.bytes /= 2;
        },
        stages);
    expect_broken(
        PlanRule::kInputs, "rows are sent before they are there",
        [&](Steps& steps) {
          const size_t i = find(steps, crosses(phase));
          const auto first = steps[1].begin() + static_cast<std::ptrdiff_t>(i);
          std::rotate(first - 1, first, first + 2);
        },
        stages);
  }
  expect_broken(
      PlanRule::kInputs, "rows become another layer's input",
      [&](Steps& steps) {
        const size_t i = find(steps, crosses(Phase::kForward));
        ++steps[1][i + 1].task.uses[0].page;
      },
      stages);
}

}  // namespace
}  // namespace pagoda
