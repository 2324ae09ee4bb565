// The validator over plans of several ranks that are broken on purpose: copies, updates and rows
// that go astray between ranks.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/plan/step/broken_ranks.h"

namespace pagoda {
namespace {

// Gives the task to a device of another rank.
void move_elsewhere(PlacedTask& t) {
  t.task.device = static_cast<uint8_t>((t.task.device + 2) % 4);
  for (uint8_t i = 0; i < t.task.num_uses; ++i) {
    Place& place = t.task.uses[i].place;
    if (place.tier == Tier::kDevice) place = Place::on_device(t.task.device);
  }
  t.moves.clear();
}

class BrokenRanks : public testing::Test {
 protected:
  static MergedRun& good() {
    static MergedRun run(StepKind{});
    return run;
  }
  void SetUp() override { ASSERT_EQ(first_fault(good().faults(good().steps)), ""); }
  static int rank_of(int device) { return good().ranks->shape().rank_of(device); }
  // From a device of one rank to another's.
  static auto across(TaskKind kind) {
    return [kind](const PlacedTask& t) {
      return t.task.kind == kind && rank_of(t.task.device) != rank_of(t.task.peer);
    };
  }
  static void expect(PlanRule rule, const char* what, const std::function<void(Step&)>& mutate,
                     MergedRun& run = good()) {
    expect_broken(rule, what, mutate, run);
  }
};

TEST_F(BrokenRanks, CopiesDoNotMatch) {
  expect(PlanRule::kMatched, "a copy is not received",
         [&](Step& step) { erase(step, find(step, of_kind(TaskKind::kReceivePage))); });
  expect(PlanRule::kMatched, "a copy is not sent",
         [&](Step& step) { erase(step, find(step, of_kind(TaskKind::kSendPage), 1)); });
  expect(PlanRule::kMatched, "two copies of a channel are received in the other order",
         [&](Step& step) {
           const size_t first = find(step, of_kind(TaskKind::kReceivePage));
           const Task& t = step[first].task;
           const size_t second = find(step, [&](const PlacedTask& other) {
             return other.task.kind == TaskKind::kReceivePage && other.task.device == t.device &&
                    rank_of(other.task.peer) == rank_of(t.peer) && other.task.record != t.record;
           });
           std::swap(step[first].task, step[second].task);
         });
  expect(PlanRule::kMatched, "a copy is short",
         [&](Step& step) { step[find(step, of_kind(TaskKind::kReceivePage))].task.bytes -= 2; });
}

TEST_F(BrokenRanks, RecordsLeaveTheirHome) {
  expect(PlanRule::kHome, "a copy is of before the update", [&](Step& step) {
    const size_t i = find(step, of_kind(TaskKind::kReceivePage));
    const int64_t record = step[i].task.record;
    for (const TaskKind kind : {TaskKind::kSendPage, TaskKind::kReceivePage}) {
      const auto of_record = [&](const PlacedTask& t) {
        return t.task.kind == kind && t.task.record == record;
      };
      std::erase_if(step, of_record);
    }
  });
  expect(PlanRule::kHome, "an update is made away from home",
         [&](Step& step) { move_elsewhere(step[find(step, of_kind(TaskKind::kAdam))]); });
  expect(PlanRule::kHome, "a copy is updated too", [&](Step& step) {
    const size_t i = find(step, of_kind(TaskKind::kReceivePage));
    PlacedTask again = step[i];
    again.task.kind = TaskKind::kUpload;
    again.task.uses[0].access = Access::kWrite;
    step.insert(step.begin() + static_cast<int64_t>(i) + 1, again);
  });
  expect(PlanRule::kHome, "a gradient is finished away from home",
         [&](Step& step) { move_elsewhere(step[find(step, of_kind(TaskKind::kGradient))]); });
  expect(PlanRule::kInputs, "an expert is computed by another rank",
         [&](Step& step) { move_elsewhere(step[find(step, of_kind(TaskKind::kExpertBackward))]); });
}

TEST_F(BrokenRanks, RowsDoNotMatch) {
  expect(PlanRule::kMatched, "rows do not cross",
         [&](Step& step) { erase(step, find(step, across(TaskKind::kSend))); });
  expect(PlanRule::kMatched, "rows are not taken",
         [&](Step& step) { erase(step, find(step, across(TaskKind::kReceive))); });
  expect(PlanRule::kMatched, "a channel's rows change places", [&](Step& step) {
    const size_t first = find(step, across(TaskKind::kReceive));
    const Task& t = step[first].task;
    const size_t second = find(step, [&](const PlacedTask& other) {
      return other.task.kind == TaskKind::kReceive && other.task.device == t.device &&
             other.task.peer == t.peer && other.task.bytes != t.bytes;
    });
    std::swap(step[first].task.bytes, step[second].task.bytes);
  });
}

TEST_F(BrokenRanks, RowsComeByNoLaneOfTheirs) {
  expect(PlanRule::kInputs, "a device of an equal card has one lane",
         [&](Step& step) { step[find(step, across(TaskKind::kReceive))].task.lane = Lane::kIn1; });
  StepKind zebra;
  zebra.zebra = true;
  zebra.lags = {1, 1, 1};
  static MergedRun apart(zebra);
  ASSERT_EQ(first_fault(apart.faults(apart.steps)), "");
  const auto changed = [](Lane from, Lane to) {
    return [=](Step& step) {
      const auto comes = [&](const PlacedTask& t) {
        return t.task.kind == TaskKind::kReceive && t.task.wave >= 0 && t.task.lane == from;
      };
      step[find(step, comes)].task.lane = to;
    };
  };
  expect(PlanRule::kInputs, "what experts gave comes behind rows for experts",
         changed(Lane::kInBack, Lane::kIn), apart);
  expect(PlanRule::kInputs, "rows for experts come behind what experts gave",
         changed(Lane::kIn, Lane::kInBack), apart);
}

// Two ranks of two devices, whose rows go in rounds, and so in turn.
TEST_F(BrokenRanks, TurnsAreTakenInAnotherOrder) {
  static MergedRun rounds(StepKind{}, ExchangeOrder::kRounds, {0, 0, 1, 1});
  ASSERT_EQ(first_fault(rounds.faults(rounds.steps)), "");
  const auto in_turn = [](TaskKind kind) {
    return [kind](const PlacedTask& t) { return t.task.kind == kind && t.task.in_turn; };
  };
  const auto receive_later = [&](Step& step) {
    const size_t receive = find(step, in_turn(TaskKind::kReceive));
    const size_t next_send = find(step, in_turn(TaskKind::kSend), 1);
    ASSERT_LT(receive, next_send);
    const PlacedTask moved = step[receive];
    step.insert(step.begin() + static_cast<int64_t>(next_send) + 1, moved);
    erase(step, receive);
  };
  expect(PlanRule::kMatched, "a receive is behind the next send", receive_later, rounds);
  const auto take_no_turn = [&](Step& step) {
    step[find(step, in_turn(TaskKind::kReceive))].task.in_turn = false;
  };
  expect(PlanRule::kMatched, "one end takes no turn", take_no_turn, rounds);
}

// Two ranks of two devices, whose rows go by HALO.
TEST_F(BrokenRanks, ParcelsGoElsewhere) {
  static MergedRun halo(StepKind{}, ExchangeOrder::kHalo, {0, 0, 1, 1});
  ASSERT_EQ(first_fault(halo.faults(halo.steps)), "");
  const PageTable& pages = halo.ranks->ranks()[0]->pages;
  const auto of_message = [&](bool leaves) {
    return [&pages, leaves](const PlacedTask& t) {
      const bool sends = t.task.kind == TaskKind::kSend;
      return sends && pages.is_message(t.task.uses[0].page) &&
             (t.task.device / 2 != t.task.peer / 2) == leaves;
    };
  };
  const auto broken = [&](PlanRule rule, const char* what, const auto& mutate) {
    expect(rule, what, mutate, halo);
  };
  broken(PlanRule::kInputs, "a device takes another's parcel", [&](Step& step) {
    step[find(step, of_kind(TaskKind::kTakeParcel))].task.first_byte += 64;
  });
  broken(PlanRule::kInputs, "a parcel is not taken",
         [&](Step& step) { erase(step, find(step, of_kind(TaskKind::kTakeParcel))); });
  broken(PlanRule::kInputs, "other bytes are passed on",
         [&](Step& step) { step[find(step, of_message(false))].task.first_byte += 64; });
  broken(PlanRule::kInputs, "a message is short", [&](Step& step) {
    const size_t i = find(step, of_message(true));
    step[i].task.bytes -= 2;
    step[i + 1].task.bytes -= 2;
  });
  const auto gathers = [&](const PlacedTask& t) {
    return t.task.kind == TaskKind::kDispatch && pages.is_message(t.task.uses[0].page);
  };
  broken(PlanRule::kInputs, "rows are handed out for another node", [&](Step& step) {
    Task& t = step[find(step, gathers)].task;
    t.peer = static_cast<uint8_t>((t.peer + 2) % 4);
  });
  broken(PlanRule::kInputs, "parcels overlap", [&](Step& step) {
    const auto second = [&](const PlacedTask& t) { return gathers(t) && t.task.first_byte > 0; };
    step[find(step, second)].task.first_byte -= 64;
  });
  broken(PlanRule::kMatched, "a message does not arrive",
         [&](Step& step) { erase(step, find(step, across(TaskKind::kReceive))); });
}

}  // namespace
}  // namespace pagoda
