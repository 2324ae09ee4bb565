// The validator over plans that are broken on purpose: each rule must be seen to be broken.
#include <gtest/gtest.h>

#include "tests/plan/step/broken_plan.h"

namespace pagoda {
namespace {

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

// On the only device, experts in their order, which add what they give in place.
const Recorded& adding() {
  static const Recorded recorded(false, 5, 1, false, 1, true, false, 0, true);
  return recorded;
}

// Rows that experts read where they are, on one device and on two.
TEST(Validator, SeesRowsThatAreNotHeldInPlace) {
  static const Recorded alone(false, 5, 1, false, 1, true), several(false, 5, 2, false, 1, true);
  const auto reads = of_kind(TaskKind::kReadRows);
  for (const Recorded* good : {&alone, &several, &adding()}) {
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

TEST(Validator, SeesRowsThatAreAddedWrong) {
  ASSERT_TRUE(adding().made->shape.adds_in_place());
  const auto reads = of_kind(TaskKind::kReadRows), experts = of_kind(TaskKind::kExpert);
  expect_broken(
      PlanRule::kInputs, "a sum is not held",
      [&](Steps& steps) {
        PlacedTask& t = steps[1][find(steps, reads)];
        --t.task.num_uses;
        t.slots.pop_back();
      },
      adding());
  expect_broken(
      PlanRule::kInputs, "a sum is only read",
      [&](Steps& steps) {
        Task& t = steps[1][find(steps, reads)].task;
        t.uses[t.num_uses - 1u].access = Access::kRead;
      },
      adding());
  expect_broken(
      PlanRule::kInputs, "an expert adds before one that comes first",
      [&](Steps& steps) { steps[1][find(steps, experts)].task.expert = 1000; }, adding());
  expect_broken(
      PlanRule::kInputs, "an expert is left out",
      [&](Steps& steps) { erase(steps, find(steps, experts)); }, adding());
  expect_broken(
      PlanRule::kInputs, "what was added is combined",
      [&](Steps& steps) {
        const size_t i = find(steps, of_kind(TaskKind::kResidual));
        const size_t held = find(steps, reads);
        PlacedTask combine = steps[1][held];
        combine.moves.clear();
        combine.task.kind = TaskKind::kCombine;
        combine.task.joins_next = false;
        steps[1].insert(steps[1].begin() + static_cast<int64_t>(i), combine);
      },
      adding());
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

// A chunk finds the weights where the one before it left them, if they have room there.
TEST(Validator, SeesWeightsThatChunksReadAgain) {
  static const Recorded roomy(false, 1, 2, true, 1, false, false, 0, false, 1.0);
  ASSERT_GT(roomy.made->shape.rounds(), 1);
  for (const TaskKind kind : {TaskKind::kExpert, TaskKind::kExpertBackward}) {
    const auto read_in_each_chunk = [&](Steps& steps) {
      const int64_t record = steps[1][find(steps, of_kind(kind))].task.record;
      int chunk = -1;
      for (PlacedTask& t : steps[1]) {
        const bool again = t.task.kind == kind && t.task.record == record;
        if (!again || t.task.first_microbatch == chunk) continue;
        chunk = t.task.first_microbatch;
        t.moves.push_back({.kind = Move::Kind::kUpload,
                           .page = t.task.uses[0].page,
                           .device = t.task.device,
                           .device_slot = t.slots[0],
                           .host_slot = 0});
      }
    };
    expect_broken(PlanRule::kReadOnce, "each chunk reads an expert's weights", read_in_each_chunk,
                  roomy);
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
