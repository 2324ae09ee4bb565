// Messages between network cards, counted by hand. Each takes a second on a card, and then latency.
#include "plan/forecast/simulated_network.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr int64_t kBytes = 1000;

// Cards of which each has a lane that sends and one that receives.
class Exchange {
 public:
  Exchange(int cards, double latency_s) : network_(&timeline_) {
    for (int c = 0; c < cards; ++c) {
      network_.add_device(network_.add_card({latency_s, 1.0 / kBytes, 0}), strf("card %d", c));
      out_.push_back(timeline_.add_stream(strf("out %d", c)));
      in_.push_back(timeline_.add_stream(strf("in %d", c)));
    }
  }

  void carry(int from, int to) {
    const int in = in_[static_cast<size_t>(to)];
    const Timeline::Work sent = instant(out_[static_cast<size_t>(from)], Timeline::kNothing);
    const SimulatedNetwork::Message message = network_.between(from, to, kBytes, sent);
    instant(in, network_.expect(message, timeline_.last(in)));
  }
  double seconds() {
    timeline_.run();
    return timeline_.end_s();
  }

 private:
  Timeline::Work instant(int stream, Timeline::Work after) {
    return timeline_.add(stream, Timeline::kNone, 0, 0, {&after, 1});
  }

  Timeline timeline_;
  SimulatedNetwork network_;
  std::vector<int> out_, in_;  // [card] streams
};

// Four devices send each other a message, receiver by receiver. Receiver 0 takes those of 1, 2 and
// 3 by seconds 1, 2, 3; receiver 1 those of 0, 2 and 3 by 1, 3, 4, since 2 and 3 come to it from
// receiver 0; receiver 2 by 2, 3, 5; and receiver 3 by 3, 4, 5. A message that a lane waits for
// takes its latency too, and receiver 3 has waited for three of them.
TEST(SimulatedNetwork, FlatSendersWaitForOneReceiverAfterTheOther) {
  for (const double latency_s : {0.0, 0.25}) {
    Exchange flat(4, latency_s);
    for (int to = 0; to < 4; ++to) {
      for (int from = 0; from < 4; ++from) {
        if (from != to) flat.carry(from, to);
      }
    }
    EXPECT_NEAR(flat.seconds(), 5 + 3 * latency_s, 1e-9);
  }
}

// In rounds nobody waits for another.
TEST(SimulatedNetwork, RoundsTakeWhatADeviceSends) {
  for (const double latency_s : {0.0, 0.25}) {
    Exchange rounds(4, latency_s);
    for (int next = 1; next < 4; ++next) {
      for (int from = 0; from < 4; ++from) rounds.carry(from, (from + next) % 4);
    }
    EXPECT_NEAR(rounds.seconds(), 3 * (1 + latency_s), 1e-9);
  }
}

// Two devices with a card, or with one each, send to two others at a time.
TEST(SimulatedNetwork, DevicesShareACard) {
  for (const bool shared : {true, false}) {
    Timeline timeline;
    SimulatedNetwork network(&timeline);
    for (int d = 0; d < 4; ++d) {
      const bool second = shared && d == 1;
      network.add_device(second ? 0 : network.add_card({0, 1.0 / kBytes, 0}), strf("card %d", d));
    }
    network.between(0, 2, kBytes, Timeline::kNothing);
    network.between(1, 3, kBytes, Timeline::kNothing);
    timeline.run();
    EXPECT_NEAR(timeline.end_s(), shared ? 2 : 1, 1e-9);
  }
}

// Wires of different pairs go on side by side, and one message of a pair behind the other.
TEST(SimulatedNetwork, EachPairOfARankHasAWire) {
  Timeline timeline;
  SimulatedNetwork network(&timeline);
  const Cost wire = {0.5, 1.0 / kBytes, 0};
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{0, 1}, {0, 1}, {0, 2}, {2, 1}}) {
    network.within(from, to, wire, kBytes, Timeline::kNothing);
  }
  timeline.run();
  EXPECT_NEAR(timeline.end_s(), 3, 1e-9);
}

}  // namespace
}  // namespace pagoda
