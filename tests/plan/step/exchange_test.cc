// What devices send each other in a wave, counted by hand: flat, by rounds, and by HALO on two
// nodes of two devices, also where some experts' weights travel in place of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <ostream>
#include <vector>

#include "plan/step/expert_seats.h"
#include "plan/step/step_plan.h"

namespace pagoda {
namespace {

constexpr int kDevices = 4;
constexpr int64_t kUnitRows = 32, kUnit = 1024;  // bytes; a row of the forward has 32
using Counts = std::array<std::array<int64_t, kDevices>, kDevices>;

// [from][to] units of rows.
constexpr Counts kUnits = {{{0, 2, 1, 1}, {1, 0, 1, 2}, {1, 1, 0, 1}, {2, 1, 1, 0}}};

// A layer with an expert on each device, each of which attends to a microbatch.
RunShape four_devices(ExchangeOrder exchange) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.num_experts = kDevices;
  shape.hidden_size = 16;
  shape.experts_per_token = 1;
  shape.microbatches = kDevices;
  shape.sums.shards = kDevices;
  shape.microbatch_tokens = 256;
  shape.row_block = 256;
  shape.group_blocks = 2;
  shape.devices = kDevices;
  shape.shard_device = {0, 1, 2, 3};
  shape.device_rank = {0, 0, 1, 1};
  shape.exchange = exchange;
  shape.records.push_back({.num_elements = 1000});
  shape.records.push_back({.num_elements = 1000, .layer = 0});
  shape.layer_record = {1};
  for (int e = 0; e < kDevices; ++e) {
    shape.records.push_back({.num_elements = 1000, .layer = 0, .expert = e, .device = e});
  }
  shape.records.push_back({.num_elements = 1000});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

// The units, and what stays.
LayerRouting routing_of(const RunShape& shape) {
  LayerRouting routing;
  for (size_t b = 0; b < kDevices; ++b) {
    std::vector<int64_t>& rows = routing.emplace_back();
    int64_t sent = 0;
    for (const int64_t units : kUnits[b]) {
      rows.push_back(units * kUnitRows);
      sent += rows.back();
    }
    rows[b] = shape.microbatch_tokens - sent;
  }
  return routing;
}

struct Send {
  int from = 0, to = 0;
  int64_t bytes = 0, first_byte = 0;
  bool operator==(const Send&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Send& s) {
  return out << s.from << " to " << s.to << ": " << s.bytes << " from " << s.first_byte;
}

TaskList forward_tasks(const RunShape& shape, const LayerRouting& routing) {
  EXPECT_EQ(layer_waves(shape, 0, all_microbatches(shape), routing).size(), 1u);
  TaskList tasks;
  StepPlan(shape, PageTable(shape), {}).forward_experts(0, all_microbatches(shape), routing, tasks);
  return tasks;
}

TaskList forward_tasks(const RunShape& shape) { return forward_tasks(shape, routing_of(shape)); }

// What the layer's forward sends to the experts (kInbound) or back (kOutbound), in its order.
std::vector<Send> sends_of(const RunShape& shape, PageKind way) {
  const PageTable pages(shape);
  const TaskList tasks = forward_tasks(shape);
  std::vector<Send> sends;
  for (const Task& t : tasks) {
    if (t.kind != TaskKind::kSend) continue;
    const PageTable::Page& page = pages.pages[t.uses[0].page];
    if (pages.classes[page.slot_class].kind != way) continue;
    sends.push_back({t.device, t.peer, t.bytes, t.first_byte});
  }
  return sends;
}

std::vector<Send> sends_of(ExchangeOrder exchange, PageKind way) {
  return sends_of(four_devices(exchange), way);
}

// The weights of an expert have 8000 bytes, 2 for a number in each phase and 4 of its gradient, and
// a row has 168: weights travel for two units of 32 rows, and the rows of one unit do.
RunShape with_guests(ExchangeOrder exchange) {
  RunShape shape = four_devices(exchange);
  shape.sums.expert_shards = kDevices;
  shape.sharing = Sharing::kAuto;
  shape.group_blocks = 16;
  return shape;
}

// How many devices send in each unit of time, if each sends and takes one message after the other,
// of those within nodes or of those between them.
std::vector<int> senders_by_unit(const std::vector<Send>& sends, bool within) {
  std::array<int64_t, kDevices> sent{}, taken{};
  std::vector<int> senders;
  for (const Send& send : sends) {
    if ((send.from / 2 == send.to / 2) != within) continue;
    const auto from = static_cast<size_t>(send.from), to = static_cast<size_t>(send.to);
    const int64_t begin = std::max(sent[from], taken[to]), end = begin + send.bytes / kUnit;
    sent[from] = taken[to] = end;
    senders.resize(std::max(senders.size(), static_cast<size_t>(end)), 0);
    for (int64_t at = begin; at < end; ++at) ++senders[static_cast<size_t>(at)];
  }
  return senders;
}

TEST(Exchange, FlatGoesReceiverByReceiver) {
  std::vector<Send> expected;
  for (int to = 0; to < kDevices; ++to) {
    for (int from = 0; from < kDevices; ++from) {
      const int64_t units = kUnits[static_cast<size_t>(from)][static_cast<size_t>(to)];
      if (from != to) expected.push_back({from, to, units * kUnit, 0});
    }
  }
  const std::vector<Send> sends = sends_of(ExchangeOrder::kFlat, PageKind::kInbound);
  EXPECT_EQ(sends, expected);
  // Between nodes: 2 to 0; 3 to 0 for two units, beside 2 to 1; then 3 to 1. And 0 to 2; 1 to 2,
  // beside 0 to 3; then 1 to 3 for two units.
  EXPECT_EQ(senders_by_unit(sends, false), (std::vector<int>{2, 4, 2, 2}));
}

// Between nodes the busiest devices send or take three of ten units; within them, two of five.
TEST(Exchange, RoundsEndWithTheBusiestDevice) {
  for (const PageKind way : {PageKind::kInbound, PageKind::kOutbound}) {
    const std::vector<Send> sends = sends_of(ExchangeOrder::kRounds, way);
    const std::vector<int> between = senders_by_unit(sends, false);
    EXPECT_EQ(between.size(), 3u);
    EXPECT_EQ(std::accumulate(between.begin(), between.end(), 0), 10);
    EXPECT_EQ(senders_by_unit(sends, true), (std::vector<int>{4, 1}));
    Counts sent{};
    for (const Send& send : sends) {
      int64_t& bytes = sent[static_cast<size_t>(send.from)][static_cast<size_t>(send.to)];
      EXPECT_EQ(send.first_byte, bytes);
      bytes += send.bytes;
    }
    for (size_t a = 0; a < kDevices; ++a) {
      for (size_t b = 0; b < kDevices; ++b) {
        const int64_t units = way == PageKind::kInbound ? kUnits[a][b] : kUnits[b][a];
        EXPECT_EQ(sent[a][b], a == b ? 0 : units * kUnit);
      }
    }
  }
}

// The units of time until all has come between ranks, if each card sends and takes one message
// after the other.
int64_t units_of_cards(const std::vector<Send>& sends, const std::vector<int>& card) {
  std::array<int64_t, kDevices> sent{}, taken{};  // [card]
  int64_t end = 0;
  for (const Send& send : sends) {
    const int from = card[static_cast<size_t>(send.from)], to = card[static_cast<size_t>(send.to)];
    if (from == to) continue;
    int64_t &leaves = sent[static_cast<size_t>(from)], &comes = taken[static_cast<size_t>(to)];
    leaves = comes = std::max(leaves, comes) + send.bytes / kUnit;
    end = std::max(end, comes);
  }
  return end;
}

// Three ranks, of which the first has devices 0 and 1. Between ranks its card sends five units and
// takes five; the others' send and take three and four.
TEST(Exchange, RoundsEndWithTheBusiestCard) {
  RunShape shape = four_devices(ExchangeOrder::kRounds);
  shape.device_rank = {0, 0, 1, 2};
  EXPECT_TRUE(shape.exchange_nodes().cards().empty());
  shape.shares_cards = true;
  const ExchangeNodes nodes = shape.exchange_nodes();
  const std::span<const int> cards = nodes.cards();
  EXPECT_EQ(std::vector(cards.begin(), cards.end()), shape.device_rank);
  for (const PageKind way : {PageKind::kInbound, PageKind::kOutbound}) {
    EXPECT_EQ(units_of_cards(sends_of(shape, way), shape.device_rank), 5);
  }
}

// Between ranks whose cards are equally fast, rounds go in turn; each of these is received before
// the next one is sent, which is why turns cannot deadlock.
TEST(Exchange, RoundsTakeTurns) {
  const auto in_turn = [](const RunShape& shape) {
    const TaskList tasks = forward_tasks(shape);
    int count = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Task& t = tasks[i];
      if (!t.in_turn) continue;
      EXPECT_NE(shape.rank_of(t.device), shape.rank_of(t.peer));
      if (t.kind == TaskKind::kReceive) continue;
      EXPECT_EQ(t.kind, TaskKind::kSend);
      const Task& next = tasks[i + 1];
      EXPECT_TRUE(next.kind == TaskKind::kReceive && next.in_turn);
      EXPECT_EQ(std::pair(next.device, next.peer), std::pair(t.peer, t.device));
      ++count;
    }
    return count;
  };
  RunShape shape = four_devices(ExchangeOrder::kRounds);
  EXPECT_GE(in_turn(shape), 2 * 8);  // eight pairs of devices, there and back
  shape.shares_cards = true;
  EXPECT_GE(in_turn(shape), 2 * 8);
  shape.device_rank = {};
  EXPECT_EQ(in_turn(shape), 0);
  EXPECT_EQ(in_turn(four_devices(ExchangeOrder::kFlat)), 0);
  EXPECT_EQ(in_turn(four_devices(ExchangeOrder::kHalo)), 0);
}

// Four ranks, the last of which has a card that is three times as fast, and an expert that all
// choose: rows come to it from the three others side by side, and go back to each by its one lane.
TEST(Exchange, AFastCardHasSeveralPartners) {
  RunShape shape = four_devices(ExchangeOrder::kRounds);
  shape.device_rank = {0, 1, 2, 3};
  shape.network_rates = {10, 10, 10, 30};
  LayerRouting routing(kDevices, std::vector<int64_t>(kDevices, 0));
  for (size_t b = 0; b < kDevices; ++b) {
    routing[b][b] = shape.microbatch_tokens;
    if (b == 3) continue;
    routing[b][3] = 2 * kUnitRows;
    routing[b][b] -= 2 * kUnitRows;
  }
  // [device that sends] the lanes of what comes to the expert, and of what comes back
  const auto lanes_of = [&](bool turns) {
    std::map<int, Lane> there, back;
    for (const Task& t : forward_tasks(shape, routing)) {
      if (t.kind != TaskKind::kReceive) continue;
      EXPECT_EQ(t.bytes, 2 * kUnit);
      EXPECT_EQ(t.in_turn, turns);
      (t.device == 3 ? there : back)[t.device == 3 ? t.peer : t.device] = t.lane;
    }
    return std::pair(there, back);
  };
  const std::map<int, Lane> one = {{0, Lane::kIn}, {1, Lane::kIn}, {2, Lane::kIn}};
  const std::map<int, Lane> each = {{0, Lane::kIn}, {1, Lane::kIn1}, {2, Lane::kIn2}};
  EXPECT_EQ(lanes_of(false), std::pair(each, one));
  EXPECT_EQ(shape.in_lanes(3), 3);
  EXPECT_EQ(shape.in_lanes(0), 1);
  shape.exchange = ExchangeOrder::kFlat;
  EXPECT_EQ(lanes_of(false), std::pair(one, one));
  EXPECT_EQ(shape.in_lanes(3), 1);
  shape.exchange = ExchangeOrder::kRounds;
  shape.network_rates = {10, 10, 10, 10};
  EXPECT_EQ(lanes_of(true), std::pair(one, one));
  shape.network_rates = {};
  EXPECT_EQ(lanes_of(true), std::pair(one, one));
}

// Between the nodes of 0, 1 and of 2, 3 each device sends one message, in place of two.
TEST(Exchange, HaloSendsToCounterparts) {
  const std::vector<Send> to_experts = {
      // For both devices of the other node.
      {0, 2, 2 * kUnit},
      {1, 3, 3 * kUnit},
      {2, 0, 2 * kUnit},
      {3, 1, 3 * kUnit},
      // Within the nodes.
      {0, 1, 2 * kUnit},
      {1, 0, 1 * kUnit},
      {2, 3, 1 * kUnit},
      {3, 2, 1 * kUnit},
      // The neighbour's part of what has come from the other node.
      {0, 1, 1 * kUnit, 1 * kUnit},
      {1, 0, 2 * kUnit, 0},
      {2, 3, 1 * kUnit, 1 * kUnit},
      {3, 2, 1 * kUnit, 0},
  };
  EXPECT_EQ(sends_of(ExchangeOrder::kHalo, PageKind::kInbound), to_experts);
  const std::vector<Send> back = {
      {0, 2, 3 * kUnit},
      {1, 3, 2 * kUnit},
      {2, 0, 2 * kUnit},
      {3, 1, 3 * kUnit},
      {0, 1, 1 * kUnit},
      {1, 0, 2 * kUnit},
      {2, 3, 1 * kUnit},
      {3, 2, 1 * kUnit},
      {0, 1, 1 * kUnit, 1 * kUnit},
      {1, 0, 1 * kUnit, 0},
      {2, 3, 2 * kUnit, 1 * kUnit},
      {3, 2, 1 * kUnit, 0},
  };
  EXPECT_EQ(sends_of(ExchangeOrder::kHalo, PageKind::kOutbound), back);
}

TEST(Exchange, RowsThatAGuestComputesAreInNone) {
  for (const ExchangeOrder exchange : {ExchangeOrder::kFlat, ExchangeOrder::kRounds}) {
    Counts sent{};
    for (const Send& send : sends_of(with_guests(exchange), PageKind::kInbound)) {
      sent[static_cast<size_t>(send.from)][static_cast<size_t>(send.to)] += send.bytes;
    }
    for (size_t a = 0; a < kDevices; ++a) {
      for (size_t b = 0; b < kDevices; ++b) {
        EXPECT_EQ(sent[a][b], kUnits[a][b] == 1 ? kUnit : 0) << a << " to " << b;
      }
    }
  }
  const std::vector<Send> by_halo = {
      // Both devices of the other node, or its counterpart's neighbour.
      {0, 2, 2 * kUnit},
      {1, 3, 1 * kUnit},
      {2, 0, 2 * kUnit},
      {3, 1, 1 * kUnit},
      {1, 0, 1 * kUnit},
      {2, 3, 1 * kUnit},
      {3, 2, 1 * kUnit},
      {0, 1, 1 * kUnit, 1 * kUnit},
      {2, 3, 1 * kUnit, 1 * kUnit},
      {3, 2, 1 * kUnit, 0},
  };
  EXPECT_EQ(sends_of(with_guests(ExchangeOrder::kHalo), PageKind::kInbound), by_halo);
}

// A wave's rows leave as soon as there are pages for them, and what its experts gave is added
// before the next wave is computed. Added later, it would keep pages that a device needs to go on.
TEST(Exchange, RowsLeaveAheadByTheWavesInFlight) {
  RunShape shape = four_devices(ExchangeOrder::kFlat);
  shape.row_block = kUnitRows;
  shape.group_blocks = 1;
  const LayerRouting routing = routing_of(shape);
  const auto waves = std::ssize(layer_waves(shape, 0, all_microbatches(shape), routing));
  ASSERT_GE(waves, 8);
  for (const int64_t in_flight : {2, 3, 8}) {
    shape.waves_in_flight = in_flight;
    const PageTable pages(shape);
    TaskList tasks;
    StepPlan(shape, pages, {}).forward_experts(0, all_microbatches(shape), routing, tasks);
    std::vector<int64_t> computed;  // [wave] where its first expert is
    for (int64_t i = 0; i < std::ssize(tasks); ++i) {
      const bool first = tasks[static_cast<size_t>(i)].kind == TaskKind::kExpert &&
                         tasks[static_cast<size_t>(i)].wave == std::ssize(computed);
      if (first) computed.push_back(i);
    }
    ASSERT_EQ(std::ssize(computed), waves);
    int64_t sent = 0, added = 0;
    for (int64_t i = 0; i < std::ssize(tasks); ++i) {
      const Task& t = tasks[static_cast<size_t>(i)];
      const auto before = [&](int64_t wave) {
        return wave < 0 || (wave < waves && computed[static_cast<size_t>(wave)] < i);
      };
      if (t.kind == TaskKind::kCombine) {
        EXPECT_TRUE(before(t.wave) && !before(t.wave + 1)) << in_flight;
        ++added;
      }
      const bool to_experts =
          t.kind == TaskKind::kSend &&
          pages.classes[pages.pages[t.uses[0].page].slot_class].kind == PageKind::kInbound;
      if (!to_experts) continue;
      const int64_t next = t.wave - in_flight + 1;
      EXPECT_TRUE(before(next - 1) && (next < 0 || !before(next))) << in_flight;
      ++sent;
    }
    EXPECT_GE(sent, kDevices * (kDevices - 1));
    EXPECT_GE(added, waves);
  }
}

// Weights of experts 0 and 3 are sent to the other node, those of expert 1 are in device 0's own
// host; and parts of all three gradients go to their seats.
TEST(Exchange, WeightsAndSumsOfGuestsGoStraight) {
  for (const ExchangeOrder exchange :
       {ExchangeOrder::kFlat, ExchangeOrder::kRounds, ExchangeOrder::kHalo}) {
    const RunShape shape = with_guests(exchange);
    std::vector<Send> weights, sums;
    const TaskList forward = forward_tasks(shape);
    for (const Task& t : forward) {
      if (t.kind == TaskKind::kSendPage) weights.push_back({t.device, t.peer, t.bytes, 0});
    }
    std::sort(weights.begin(), weights.end(),
              [](const Send& a, const Send& b) { return a.from < b.from; });
    EXPECT_EQ(weights, (std::vector<Send>{{0, 3, 2000}, {3, 1, 2000}}));
    const auto is = [](TaskKind kind) { return [kind](const Task& t) { return t.kind == kind; }; };
    EXPECT_LT(std::find_if(forward.begin(), forward.end(), is(TaskKind::kReceivePage)),
              std::find_if(forward.begin(), forward.end(), is(TaskKind::kSend)))
        << "weights come ahead of the wave's rows";
    TaskList backward;
    StepPlan(shape, PageTable(shape), {})
        .backward_experts(0, all_microbatches(shape), routing_of(shape), backward);
    for (const Task& t : backward) {
      if (t.kind == TaskKind::kSend && t.elements > 0) sums.push_back({t.device, t.peer, t.bytes});
    }
    EXPECT_EQ(sums, (std::vector<Send>{{3, 0, 4000}, {0, 1, 4000}, {1, 3, 4000}}));
  }
}

}  // namespace
}  // namespace pagoda
