// The validator over plans that are broken on purpose: each rule must be seen to be broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "tests/testing/plan/planned_case.h"

namespace pagoda {
namespace {

using Steps = std::vector<std::vector<PlacedTask>>;

// Two steps in which every layer has experts with and without tokens, at the smallest budgets.
struct Recorded {
  explicit Recorded(bool eager, int64_t group_blocks = 1, int devices = 1, bool zebra = false,
                    int stages = 1, bool in_place = false, bool in_parts = false) {
    std::mt19937 random(7);
    StepKind kind;
    kind.eager = eager;
    kind.group_blocks = group_blocks;
    kind.zebra = zebra;
    kind.lags = {1, 1, 1};
    kind.stages = stages;
    kind.order = PipelineOrder::kOneForwardOneBackward;
    kind.options.in_place = in_place;
    do {
      do {
        made = std::make_unique<PlannedCase>(random, devices, kind, in_place ? 0.4 : 0.0);
      } while (made->shape.num_layers < 3 || made->shape.num_experts < 5 ||
               !made->shape.is_moe[1] || made->shape.microbatches < 2 ||
               made->shape.sums.shards < 2 || ((zebra || stages > 1) && made->shape.rounds() < 2) ||
               std::ssize(made->shape.attending_devices()) < devices ||
               made->shape.in_place != in_place);
      record();
    } while (in_parts && std::none_of(steps[1].begin(), steps[1].end(),
                                      [](const PlacedTask& t) { return t.task.first_byte > 0; }));
  }
  void record() {
    steps.clear();
    Replay replay(&made->pages, made->start());
    for (int step = 0; step < 2; ++step) {
      std::vector<std::vector<int64_t>> layers(made->shape.num_layers);
      for (int64_t l = 0; l < made->shape.num_layers; ++l) {
        if (!made->shape.is_moe[l]) continue;
        layers[l].assign(made->shape.num_experts, 2 * made->shape.row_block - 1);
        layers[l][static_cast<size_t>(step)] = 0;
      }
      std::vector<PlacedTask>& placed = steps.emplace_back();
      made->run->train(Routing(made->shape.microbatches, layers), [&](const StepPiece& piece) {
        for (const Task& task : piece.tasks) placed.push_back(place(replay, task));
      });
    }
  }
  PlanFaults faults(const Steps& broken) const {
    PlanValidator validator = made->validator();
    for (const auto& step : broken) {
      validator.begin_step();
      for (const PlacedTask& t : step) validator.check(t.task, t.moves, t.slots);
      validator.end_step(true);
    }
    return validator.faults();
  }
  std::unique_ptr<PlannedCase> made;
  Steps steps;
};

// The n-th task of the second step for which `is` holds.
template <typename Is>
size_t find(const Steps& steps, Is&& is, int n = 0) {
  for (size_t i = 0; i < steps[1].size(); ++i) {
    if (is(steps[1][i]) && n-- == 0) return i;
  }
  CHECK(false, "the plan has no such task");
}

auto of_kind(TaskKind kind) {
  return [kind](const PlacedTask& t) { return t.task.kind == kind; };
}

auto with_move(Move::Kind kind) {
  return [kind](const PlacedTask& t) {
    return std::any_of(t.moves.begin(), t.moves.end(),
                       [&](const Move& move) { return move.kind == kind; });
  };
}

// An optimizer's task that has a gradient, as against one that applies old updates.
bool consumes(const PlacedTask& t) {
  return t.task.kind == TaskKind::kAdam && t.task.num_uses == 3;
}

void erase(Steps& steps, size_t i) {
  steps[1].erase(steps[1].begin() + static_cast<int64_t>(i));
}

void repeat(Steps& steps, size_t i) {
  PlacedTask again = steps[1][i];
  again.moves.clear();
  steps[1].insert(steps[1].begin() + static_cast<int64_t>(i) + 1, again);
}

void expect_broken(PlanRule rule, const char* what, const std::function<void(Steps&)>& mutate,
                   const Recorded& good) {
  SCOPED_TRACE(what);
  ASSERT_EQ(first_fault(good.faults(good.steps)), "");
  Steps broken = good.steps;
  mutate(broken);
  const PlanFaults faults = good.faults(broken);
  const bool found = std::any_of(faults.begin(), faults.end(),
                                 [&](const PlanFault& fault) { return fault.rule == rule; });
  EXPECT_TRUE(found) << "the first fault found is " << first_fault(faults);
}

void expect_broken(PlanRule rule, const char* what, const std::function<void(Steps&)>& mutate,
                   bool eager = false) {
  static const Recorded recorded[2] = {Recorded(false), Recorded(true)};
  expect_broken(rule, what, mutate, recorded[eager]);
}

TEST(Validator, SeesTasksBeforeTheirInputs) {
  for (TaskKind kind :
       {TaskKind::kEmbed, TaskKind::kAttention, TaskKind::kRoute, TaskKind::kIndex,
        TaskKind::kDispatch, TaskKind::kExpert, TaskKind::kCombine, TaskKind::kResidual,
        TaskKind::kHead, TaskKind::kRouteReplay, TaskKind::kDispatchBackward,
        TaskKind::kExpertBackward, TaskKind::kCombineBackward, TaskKind::kRouteBackward,
        TaskKind::kAttentionBackward, TaskKind::kEmbedBackward, TaskKind::kAdam}) {
    const std::string what = strf("without a task of kind %d", static_cast<int>(kind));
    expect_broken(PlanRule::kInputs, what.c_str(),
                  [&](Steps& steps) { erase(steps, find(steps, of_kind(kind))); });
  }
  expect_broken(PlanRule::kInputs, "two combines of a microbatch change places", [](Steps& steps) {
    const auto first = [](const PlacedTask& t) {
      return t.task.kind == TaskKind::kCombine && t.task.microbatch == 0;
    };
    std::swap(steps[1][find(steps, first, 0)].task.wave, steps[1][find(steps, first, 1)].task.wave);
  });
  expect_broken(PlanRule::kInputs, "rows not where they lie in their block", [](Steps& steps) {
    ++steps[1][find(steps, of_kind(TaskKind::kExpert))].task.block_row;
  });
  for (TaskKind kind : {TaskKind::kDispatch, TaskKind::kCombineBackward}) {
    expect_broken(PlanRule::kInputs, "rows of another microbatch", [&](Steps& steps) {
      Task& t = steps[1][find(steps, of_kind(kind))].task;
      t.microbatch = 1 - t.microbatch;
    });
    expect_broken(PlanRule::kInputs, "rows beyond their block",
                  [&](Steps& steps) { ++steps[1][find(steps, of_kind(kind))].task.rows; });
  }
  for (Move::Kind kind : {Move::Kind::kFetch, Move::Kind::kUpload}) {
    expect_broken(PlanRule::kInputs, "a page does not come", [&](Steps& steps) {
      std::erase_if(steps[1][find(steps, with_move(kind))].moves,
                    [&](const Move& move) { return move.kind == kind; });
    });
  }
}

// Rows that experts read where they are, on one device and on two.
TEST(Validator, SeesRowsThatAreNotHeldInPlace) {
  static const Recorded alone(false, 5, 1, false, 1, true), several(false, 5, 2, false, 1, true);
  const auto reads = of_kind(TaskKind::kReadRows);
  for (const Recorded* good : {&alone, &several}) {
    expect_broken(
        PlanRule::kInputs, "rows are not held",
        [&](Steps& steps) { erase(steps, find(steps, reads)); }, *good);
    expect_broken(
        PlanRule::kInputs, "rows are held twice",
        [&](Steps& steps) { repeat(steps, find(steps, reads)); }, *good);
    expect_broken(
        PlanRule::kInputs, "rows are given up before experts read them",
        [&](Steps& steps) { steps[1][find(steps, reads)].task.joins_next = false; }, *good);
    expect_broken(
        PlanRule::kInputs, "rows of another microbatch",
        [&](Steps& steps) {
          Task& t = steps[1][find(steps, reads)].task;
          t.microbatch = t.microbatch == 0 ? 1 : 0;
        },
        *good);
    expect_broken(
        PlanRule::kInputs, "more rows than there are",
        [&](Steps& steps) { ++steps[1][find(steps, reads)].task.rows; }, *good);
    expect_broken(
        PlanRule::kInputs, "the backward lacks gradients of outputs",
        [&](Steps& steps) {
          const auto backward = [&](const PlacedTask& t) {
            return reads(t) && t.task.phase == Phase::kBackward;
          };
          PlacedTask& t = steps[1][find(steps, backward)];
          t.task.num_uses = 1;
          t.slots.pop_back();
        },
        *good);
    expect_broken(
        PlanRule::kInputs, "before its device has sorted them",
        [&](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kIndex))); }, *good);
  }
}

// Groups of several experts, which go together.
TEST(Validator, SeesGroupsThatFallApart) {
  static const Recorded grouped(false, 5);
  const auto joins = [](const PlacedTask& t) { return t.task.joins_next; };
  const auto later_part = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kDispatch && t.task.microbatch > 0;
  };
  const auto later_combine = [](const PlacedTask& t) {
    return t.task.kind == TaskKind::kCombineBackward && t.task.microbatch > 0;
  };
  expect_broken(PlanRule::kInputs, "an expert is left out",
                [&](Steps& steps) { erase(steps, find(steps, joins)); }, grouped);
  expect_broken(PlanRule::kInputs, "the last expert is left out",
                [&](Steps& steps) { erase(steps, find(steps, joins) + 1); }, grouped);
  expect_broken(PlanRule::kInputs, "a group ends too early", [&](Steps& steps) {
    steps[1][find(steps, joins)].task.joins_next = false;
  }, grouped);
  expect_broken(PlanRule::kInputs, "experts change places", [&](Steps& steps) {
    const size_t i = find(steps, joins);
    std::swap(steps[1][i].task.block_row, steps[1][i + 1].task.block_row);
    std::swap(steps[1][i].task.first_row, steps[1][i + 1].task.first_row);
  }, grouped);
  expect_broken(PlanRule::kInputs, "a microbatch is not handed out",
                [&](Steps& steps) { erase(steps, find(steps, later_part)); }, grouped);
  expect_broken(PlanRule::kInputs, "a microbatch is not combined",
                [&](Steps& steps) { erase(steps, find(steps, later_combine)); }, grouped);
  expect_broken(
      PlanRule::kSlots, "an expert's weights take those of another in the group",
      [&](Steps& steps) {
        const size_t i = find(steps, [&](const PlacedTask& t) {
          return joins(t) && (&t + 1)->task.record != t.task.record;
        });
        PlacedTask& other = steps[1][i + 1];
        const int32_t taken = steps[1][i].slots[0];
        for (Move& move : other.moves) {
          if (move.page == other.task.uses[0].page) move.device_slot = taken;
        }
        other.slots[0] = taken;
      },
      grouped);
}

TEST(Validator, SeesSlotsUsedTwice) {
  for (Move::Kind kind : {Move::Kind::kWriteBack, Move::Kind::kDownload}) {
    expect_broken(PlanRule::kSlots, "the only copy is not saved", [&](Steps& steps) {
      for (PlacedTask& t : steps[1]) {
        std::erase_if(t.moves, [&](const Move& move) { return move.kind == kind; });
      }
    });
  }
  // What attention reads and what it makes are of one class.
  for (size_t given : {1, 2}) {
    expect_broken(PlanRule::kSlots, "two pages of a task are given one slot", [&](Steps& steps) {
      PlacedTask& t = steps[1][find(steps, of_kind(TaskKind::kAttention))];
      t.slots[given] = t.slots[3 - given];
    });
  }
}

TEST(Validator, SeesBudgetsExceeded) {
  expect_broken(PlanRule::kBudget, "a slot beyond the last", [](Steps& steps) {
    const size_t i = find(steps, with_move(Move::Kind::kFetch));
    for (Move& move : steps[1][i].moves) move.host_slot += 1000;
  });
  const Recorded recorded(false);
  const PlannedCase& c = *recorded.made;
  for (int place = 0; place < 2; ++place) {
    MemoryPlan memory = c.memory;
    (place == 0 ? memory.classes[0].device_slots[0] : memory.classes[0].host_slots) += 100;
    const PlanValidator validator(&c.shape, &c.pages, memory, c.budget, PlannedCase::kHeaderBytes,
                                  c.start());
    ASSERT_EQ(validator.faults().size(), 1u);
    EXPECT_EQ(validator.faults()[0].rule, PlanRule::kBudget);
  }
}

TEST(Validator, SeesNeedlessMoves) {
  for (Move::Kind kind : {Move::Kind::kWriteBack, Move::Kind::kUpload, Move::Kind::kFetch}) {
    expect_broken(PlanRule::kNeeded, "a move is made twice", [&](Steps& steps) {
      std::vector<Move>& moves = steps[1][find(steps, with_move(kind))].moves;
      const auto at = std::find_if(moves.begin(), moves.end(),
                                   [&](const Move& move) { return move.kind == kind; });
      moves.insert(at, Move(*at));
    });
  }
}

// Blocks of an expert that do not follow one another make its weights come twice.
TEST(Validator, SeesWeightsReadTwice) {
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    std::mt19937 random(3);
    std::unique_ptr<PlannedCase> c;
    do {
      c = std::make_unique<PlannedCase>(random, 1, StepKind{}, 0.0);
    } while (!c->shape.is_moe[0] || c->shape.num_experts < 5);
    Replay replay(&c->pages, c->start());
    PlanValidator validator = c->validator();
    const TaskKind kind = phase == Phase::kForward ? TaskKind::kExpert : TaskKind::kExpertBackward;
    std::optional<Task> first;
    validator.begin_step();
    const std::vector layers(c->shape.num_layers, std::vector<int64_t>(c->shape.num_experts, 1));
    c->run->train(Routing(c->shape.microbatches, layers), [&](const StepPiece& piece) {
      for (const Task& task : piece.tasks) {
        Task twice = task;
        if (task.kind == kind && first && task.layer == first->layer && task.expert == 3) {
          twice.kind = TaskKind::kUpload;
          twice.uses[0] = first->uses[0];
          twice.num_uses = 1;
          const PlacedTask placed = place(replay, twice);
          validator.check(twice, placed.moves, placed.slots);
        }
        if (task.kind == kind && !first) first = task;
        const PlacedTask placed = place(replay, task);
        validator.check(task, placed.moves, placed.slots);
      }
    });
    ASSERT_FALSE(validator.faults().empty());
    EXPECT_EQ(validator.faults()[0].rule, PlanRule::kReadOnce) << first_fault(validator.faults());
  }
}

TEST(Validator, SeesAKindInAnothersPhase) {
  expect_broken(PlanRule::kInputs, "residual: in a phase", [](Steps& steps) {
    steps[1][find(steps, of_kind(TaskKind::kResidual), 1)].task.phase = Phase::kBackward;
  });
}

TEST(Validator, SeesGradientsMadeOrConsumedTwiceOrNever) {
  for (bool eager : {false, true}) {
    expect_broken(PlanRule::kGradientOnce, "not made",
                  [](Steps& steps) { erase(steps, find(steps, of_kind(TaskKind::kGradient), 2)); },
                  eager);
    expect_broken(PlanRule::kGradientOnce, "made twice",
                  [](Steps& steps) { repeat(steps, find(steps, of_kind(TaskKind::kGradient), 2)); },
                  eager);
    expect_broken(PlanRule::kGradientOnce, "not given up", [](Steps& steps) {
      steps[1][find(steps, consumes, 1)].task.uses[2].last = false;
    }, eager);
    expect_broken(PlanRule::kGradientOnce, "consumed twice",
                  [](Steps& steps) { repeat(steps, find(steps, consumes, 1)); },
                  eager);
  }
  expect_broken(PlanRule::kGradientOnce, "not consumed", [](Steps& steps) {
    erase(steps, find(steps, consumes, 1));
  });
}

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

TEST(Validator, SeesStateUsedTwice) {
  expect_broken(PlanRule::kStateOnce, "updated twice", [](Steps& steps) {
    const size_t i = find(steps, of_kind(TaskKind::kAdam));
    repeat(steps, i);
    steps[1][i + 1].task.num_uses = 2;
  });
  expect_broken(PlanRule::kStateOnce, "read by something else", [](Steps& steps) {
    const size_t i = find(steps, of_kind(TaskKind::kAdam));
    repeat(steps, i);
    steps[1][i + 1].task.kind = TaskKind::kUpload;
    steps[1][i + 1].task.phase = Phase::kBackward;
    steps[1][i + 1].task.num_uses = 2;
  });
}

}  // namespace
}  // namespace pagoda
