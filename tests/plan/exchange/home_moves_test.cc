// When experts of a run exchange homes, against numbers worked out by hand; and that rows which are
// uneven by chance move nothing.
#include "plan/exchange/home_moves.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda {
namespace {

// One layer of experts with 100 elements and 1000 bytes of state each; embedding, layer, head. All
// rows go in one wave.
RunShape shape_of(std::vector<int> home, std::vector<int> device_rank) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.num_experts = std::ssize(home);
  shape.layer_record = {1};
  shape.records = {{10, -1, -1, 0, 100}, {10, 0, -1, 0, 100}};
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    shape.records.push_back({100, 0, e, home[static_cast<size_t>(e)], 1000});
  }
  shape.records.push_back({10, -1, -1, 0, 100});
  shape.microbatches = 1;
  shape.row_block = 256;
  shape.group_blocks = 1000;
  shape.devices = static_cast<int>(device_rank.size());
  if (device_rank.back() > 0) shape.device_rank = std::move(device_rank);
  return shape;
}

RowMeans means_of(std::vector<int64_t> rows, int64_t steps) {
  RowMeans means(steps);
  const std::vector<std::vector<int64_t>> layers = {std::move(rows)};
  for (int64_t i = 0; i < steps; ++i) means.add(layers);
  return means;
}

TEST(HomeMoves, MeansOfRows) {
  RowMeans means(2);
  EXPECT_TRUE(means.of_layer(1).empty());
  const int64_t rows[] = {10, 20, 40};
  const double expected[] = {10, 15, 27.5};  // then half of the newest
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::vector<int64_t>> layers = {{}, {rows[i], 0}};
    means.add(layers);
    EXPECT_TRUE(means.of_layer(0).empty());
    EXPECT_EQ(means.of_layer(1)[0], expected[i]);
    EXPECT_EQ(means.of_layer(1)[1], 0);
    EXPECT_EQ(means.weight(), std::min(i + 1, 2));
  }
  EXPECT_EQ(means.steps(), 3);
}

// Weights and gradient of an expert are 800 bytes, nine rows 792 and ten 880: these stay, as
// guests.
TEST(HomeMoves, LoadsAreRowsThatTravel) {
  RunShape shape = shape_of({0, 1}, {0, 0});
  shape.hidden_size = 8;
  shape.microbatches = 2;
  shape.shard_device = {0, 1};
  shape.sums = {1, 2, 2};
  const Routing routing = {{{10, 9}}, {{8, 10}}};
  using Loads = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(home_loads(shape, routing), (Loads{{18, 19}}));
  shape.sharing = Sharing::kAuto;
  EXPECT_EQ(home_loads(shape, routing), (Loads{{8, 9}}));
}

// Devices have 800 and 200 rows. Experts 0 and 2 for each other make that 300 and 700, and so do 1
// and 2; nothing is better. The step gains 100 rows of 1 ms; an exchange is of 100 * 2 + 1000
// bytes.
struct TwoRanks : testing::Test {
  RunShape shape = shape_of({0, 0, 1, 1}, {0, 1});
  RowMeans means = means_of({600, 200, 100, 100}, 10);
  StepTimes times{2, {1e-3, 1e-3}, 1200};
  bool move() const { return !choose_moves(shape, means, times, 10).swaps.empty(); }
};

TEST_F(TwoRanks, ExchangeWhatPays) {
  const HomeMoves moves = choose_moves(shape, means, times, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{2, 4}}));
  EXPECT_NEAR(moves.gain_s, 0.1, 1e-12);
  EXPECT_NEAR(moves.move_s, 1, 1e-12);
  EXPECT_EQ(moves.bytes, 2400);
  EXPECT_EQ(moves.in_turn_bytes, 1200);
  EXPECT_EQ(balancing_swaps(shape, 0, means, times.row_s), moves.swaps);
}

TEST_F(TwoRanks, SpendATwentiethOfTheirTime) {
  times.step_s = 2.01;
  EXPECT_TRUE(move());
  times.step_s = 1.99;  // a twentieth of ten steps is less than the second that it takes
  EXPECT_FALSE(move());
}

TEST_F(TwoRanks, WaitForTwiceWhatAMoveTakes) {
  times.step_s = 5;
  times.bytes_per_s = 601;  // 40 steps gain 4 s
  EXPECT_TRUE(move());
  times.bytes_per_s = 599;
  EXPECT_FALSE(move());
}

TEST_F(TwoRanks, GainAPercent) {
  times.step_s = 9.99;
  EXPECT_TRUE(move());
  times.step_s = 10.01;
  EXPECT_FALSE(move());
}

// A hundred of 800 rows are 3.5 standard deviations; twice as many of twice as many, 5.
TEST_F(TwoRanks, SeeWhatStandsOut) {
  means = means_of({600, 200, 100, 100}, 1);
  EXPECT_FALSE(move());
  means = means_of({600, 200, 100, 100}, 2);
  EXPECT_TRUE(move());
}

TEST_F(TwoRanks, KnowNothingWithoutTimes) {
  times.row_s = {0, 0};
  EXPECT_FALSE(move());
  times.row_s = {1e-3, 0};  // as fast as the other, for all that is known
  EXPECT_TRUE(move());
}

TEST_F(TwoRanks, AreBalancedAlready) {
  means = means_of({300, 200, 100, 400}, 10);
  EXPECT_FALSE(move());
}

// Expert 0, which is frozen, stays with its 600 rows, and these count: experts 1 and 2 for each
// other leave 700 and 300. A frozen one moves without a state.
TEST_F(TwoRanks, ExchangeTheExpertsThatTrain) {
  shape.records[2].frozen_elements = 100;
  const HomeMoves moves = choose_moves(shape, means, times, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{3, 4}}));
  EXPECT_NEAR(moves.gain_s, 0.1, 1e-12);
  EXPECT_EQ(moves.bytes, 2400);
  EXPECT_EQ(moved_bytes(shape, 2), 200);
  EXPECT_EQ(moved_bytes(shape, 3), 1200);
}

// Ranks have 800, 200, 810 and 200 rows. Experts 4 and 2 for each other leave rank 2 with 350 and
// rank 1 with 660; then 0 and 6 leave rank 0 with 350 and rank 3 with 650. Both exchanges go on at
// once, and take the second of one.
TEST(HomeMoves, OfOtherRanksGoOnAtOnce) {
  const RunShape shape = shape_of({0, 0, 1, 1, 2, 2, 3, 3}, {0, 1, 2, 3});
  const RowMeans means = means_of({600, 200, 150, 50, 610, 200, 150, 50}, 10);
  const StepTimes times{3, {1e-3, 1e-3, 1e-3, 1e-3}, 1200};
  const HomeMoves moves = choose_moves(shape, means, times, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{6, 4}, {2, 8}}));
  EXPECT_NEAR(moves.gain_s, 0.15, 1e-12);
  EXPECT_EQ(moves.bytes, 4800);
  EXPECT_EQ(moves.in_turn_bytes, 1200);
  EXPECT_NEAR(moves.move_s, 1, 1e-12);
}

// Two layers whose experts are on two ranks each, with the rows of TwoRanks: an exchange of a
// second in either. Those of ranks 0 and 1, and of 2 and 3, go on at once; what has a rank in
// common takes two seconds, of which a twentieth of ten steps of 3 s has no room.
TEST(HomeMoves, OfOtherLayersGoOnAtOnceBetweenOtherRanks) {
  for (const int first : {2, 1, 0}) {  // of the ranks of the second layer's experts
    SCOPED_TRACE(first);
    RunShape shape = shape_of({0, 0, 1, 1}, {0, 1, 2, 3});
    shape.num_layers = 2;
    shape.is_moe = {1, 1};
    shape.layer_record = {1, 6};
    const RecordShape head = shape.records.back();
    shape.records.back() = {10, 1, -1, 0, 100};
    for (const int64_t e : {0, 1, 2, 3}) {
      shape.records.push_back({100, 1, e, e < 2 ? first : first + 1, 1000});
    }
    shape.records.push_back(head);
    RowMeans means(10);
    const std::vector<std::vector<int64_t>> layers(2, {600, 200, 100, 100});
    for (int i = 0; i < 10; ++i) means.add(layers);
    const std::vector<HomeSwap> both = {{2, 4}, {7, 9}};
    for (const double step_s : {3.0, 5.0}) {
      SCOPED_TRACE(step_s);
      const StepTimes times{step_s, {1e-3, 1e-3, 1e-3, 1e-3}, 1200};
      const HomeMoves moves = choose_moves(shape, means, times, 10);
      const int64_t layers_moved = first == 2 || step_s > 4 ? 2 : 1;
      EXPECT_EQ(moves.swaps, std::vector(both.begin(), both.begin() + layers_moved));
      EXPECT_NEAR(moves.gain_s, 0.1 * static_cast<double>(layers_moved), 1e-12);
      EXPECT_EQ(moves.bytes, layers_moved * 2400);
      const int64_t in_turn = first == 2 ? 1 : layers_moved;
      EXPECT_EQ(moves.in_turn_bytes, in_turn * 1200);
      EXPECT_NEAR(moves.move_s, static_cast<double>(in_turn), 1e-12);
    }
  }
}

// Device 1 takes twice as long: 500 rows there are 1 s, 500 on device 0 half of that. With experts
// 2 and 1 for each other there are 300 rows in 0.6 s, and 700 in 0.7 s.
TEST(HomeMoves, OfUnequalDevices) {
  const RunShape shape = shape_of({0, 0, 1, 1}, {0, 0});
  const RowMeans means = means_of({300, 200, 400, 100}, 10);
  const HomeMoves moves = choose_moves(shape, means, {1, {1e-3, 2e-3}, 0}, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{4, 3}}));
  EXPECT_NEAR(moves.gain_s, 0.3, 1e-12);
  EXPECT_EQ(moves.move_s, 0) << "within a process nothing travels";
  EXPECT_EQ(moves.bytes, 0);
}

// Where experts get seats by step, a rank's devices share its rows: homes matter between ranks.
TEST(HomeMoves, WithSeatsByStep) {
  RunShape shape = shape_of({0, 1, 2, 3}, {0, 0, 1, 1});
  shape.seat_speeds = {1, 1, 1, 1};
  const RowMeans even = means_of({600, 200, 300, 500}, 10);  // 800 and 800
  const StepTimes times{2, {1e-3, 1e-3, 1e-3, 1e-3}, 12000};
  EXPECT_TRUE(choose_moves(shape, even, times, 10).swaps.empty());
  // Ranks have 1000 and 300 rows, 500 on each of two devices. Experts 0 and 6 for each other leave
  // 50, 300, 200 and 200, of which a device has 400; then 2 and 4 for each other 350, as there.
  shape = shape_of({0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 1, 1});
  shape.seat_speeds = {1, 1, 1, 1};
  const RowMeans means = means_of({300, 300, 200, 200, 100, 100, 50, 50}, 10);
  const HomeMoves moves = choose_moves(shape, means, times, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{2, 8}, {4, 6}}));
  EXPECT_NEAR(moves.gain_s, 0.15, 1e-12);
  // An expert of 600 rows leaves a rank's other device 200, and would do so elsewhere.
  shape = shape_of({0, 1, 2, 3}, {0, 0, 1, 1});
  shape.seat_speeds = {1, 1, 1, 1};
  const RowMeans hot = means_of({600, 200, 100, 100}, 10);
  EXPECT_TRUE(choose_moves(shape, hot, times, 10).swaps.empty());
  RunShape one = shape_of({0, 0, 1, 1}, {0, 0});
  one.seat_speeds = {1, 1};
  EXPECT_TRUE(choose_moves(one, hot, {2, {1e-3, 1e-3}, 0}, 10).swaps.empty());
}

// Ranks have 2048 and 200 rows, and after an exchange of experts 0 and 1 both 1124. They end with
// these, if all four blocks of an expert go in one wave. If one goes in each, of 256 ms, expert 1
// goes with the last of expert 0, since it has less than a block in the microbatches that are
// through before; then expert 2 begins a wave before all have ended that one, at 768 ms, for 1024.
// With pages for all waves nobody waits.
TEST(HomeMoves, GainWhatWavesLeave) {
  struct {
    int64_t blocks, in_flight;
    double gain_s;
  } const cases[] = {{4, 2, 0.924}, {1, 2, 2.048 - 1.792}, {1, 8, 0.924}};
  for (const auto& [blocks, in_flight, gain_s] : cases) {
    SCOPED_TRACE(testing::Message() << blocks << " blocks, " << in_flight << " in flight");
    RunShape shape = shape_of({0, 1, 0, 1}, {0, 1});
    shape.microbatches = 4;
    shape.group_blocks = blocks;
    shape.waves_in_flight = in_flight;
    const RowMeans means = means_of({1024, 100, 1024, 100}, 10);
    const HomeMoves moves = choose_moves(shape, means, {9, {1e-3, 1e-3}, 1200}, 10);
    EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{2, 3}}));
    EXPECT_NEAR(moves.gain_s, gain_s, 1e-9);
  }
}

TEST(HomeMoves, OnlyOfLikeExperts) {
  RunShape shape = shape_of({0, 0, 1, 1}, {0, 1});
  EXPECT_TRUE(may_exchange(shape, {2, 4}));
  EXPECT_FALSE(may_exchange(shape, {1, 4})) << "a dense record";
  EXPECT_FALSE(may_exchange(shape, {-1, 4}));
  EXPECT_FALSE(may_exchange(shape, {2, 7}));
  shape.records[4].frozen_elements = 100;
  EXPECT_FALSE(may_exchange(shape, {2, 4})) << "one has no state";
  shape.records[4].frozen_elements = 0;
  shape.records[4].layer = 1;
  EXPECT_FALSE(may_exchange(shape, {2, 4})) << "of another layer";
  shape = shape_of({1, 1, 2, 0}, {0, 1, 2});
  shape.zebra = true;
  shape.shard_device = {0};
  EXPECT_TRUE(may_exchange(shape, {2, 4}));
  EXPECT_FALSE(may_exchange(shape, {2, 5})) << "it stays where attention is";
  // Devices 1 and 2 have 800 and 100 rows, which expert 0 for expert 2 makes 300 and 600. What
  // device 0 has they do not wait for.
  shape.microbatches = shape.sums.chunks = 2;
  const RowMeans means = means_of({600, 200, 100, 5000}, 10);
  const StepTimes times{9, {1e-3, 1e-3, 1e-3}, 12000};
  const HomeMoves moves = choose_moves(shape, means, times, 10);
  EXPECT_EQ(moves.swaps, (std::vector<HomeSwap>{{2, 4}}));
  EXPECT_NEAR(moves.gain_s, 0.2, 1e-12);
}

// Tokens that choose two of sixteen experts each, all alike: over many runs nothing ever moves,
// whatever the interval, though moves cost next to nothing.
TEST(HomeMoves, RowsThatAreUnevenByChanceMoveNothing) {
  std::vector<int> home;
  for (int e = 0; e < 16; ++e) home.push_back(e % 4);
  const RunShape shape = shape_of(home, {0, 1, 2, 3});
  std::mt19937_64 random(5);
  for (const int64_t every : {1, 4, 20}) {
    RowMeans means(every);
    for (int step = 1; step <= 400; ++step) {
      std::vector<int64_t> rows(16, 0);
      for (int token = 0; token < 512; ++token) {
        const auto first = random() % 16, other = (first + 1 + random() % 15) % 16;
        ++rows[first];
        ++rows[other];
      }
      const std::vector<std::vector<int64_t>> layers = {rows};
      means.add(layers);
      if (step % every != 0) continue;
      // A step is its experts and nothing else.
      const StepTimes times{0.256, {1e-3, 1e-3, 1e-3, 1e-3}, 1e12};
      EXPECT_TRUE(choose_moves(shape, means, times, every).swaps.empty()) << step;
    }
  }
}

// What was moved stays: by the same rows nothing moves again.
TEST(HomeMoves, DoNotGoBackAndForth) {
  RunShape shape = shape_of({0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 1, 2});
  std::mt19937_64 random(9);
  int moved = 0;
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<int64_t> rows;
    for (int e = 0; e < 9; ++e) rows.push_back(static_cast<int64_t>(random() % 1000));
    const RowMeans means = means_of(rows, 10);
    const StepTimes times{2, {1e-3, 1e-3, 1e-3}, 1e5};
    const HomeMoves moves = choose_moves(shape, means, times, 10);
    moved += moves.swaps.empty() ? 0 : 1;
    for (const HomeSwap& swap : moves.swaps) {
      ASSERT_TRUE(may_exchange(shape, swap));
      std::swap(shape.records[static_cast<size_t>(swap.a)].device,
                shape.records[static_cast<size_t>(swap.b)].device);
    }
    EXPECT_TRUE(choose_moves(shape, means, times, 10).swaps.empty()) << trial;
  }
  EXPECT_GT(moved, 50);
}

}  // namespace
}  // namespace pagoda
