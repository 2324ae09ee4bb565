// What carries bytes between devices under the simulator's clock. Devices of a rank are joined by
// wires, one for each two. A message between ranks takes its sender's and its receiver's network
// card, at the rate of the slower one; what several devices send by a card at once, and what comes
// to it at once, shares it. Messages leave a device one behind the other, or as many at a time as
// its card has lanes (plan/rounds/card_lanes.h). A message begins no sooner than its receiver's
// lane has come to it, as over a link. So where several send to one lane they wait for each other,
// it waits for the latency of each message, and one that takes what a slow card sends leaves the
// rest of a fast card idle. A fast card sends to several in any order of an all-to-all, also where
// each lane receives from one at a time: its messages wait for their receivers, and not for each
// other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/forecast/timeline.h"
#include "plan/machine/machine_profile.h"

namespace pagoda {

class SimulatedNetwork {
 public:
  using Work = Timeline::Work;
  // On its way.
  struct Message {
    Work ready = Timeline::kNothing;  // it is there
    Work moves = Timeline::kNothing;  // between cards; kNothing: within a rank
  };

  explicit SimulatedNetwork(Timeline* timeline) : timeline_(*timeline) {}  // not owned

  // Returns the number of the next card, by which a message takes so long.
  int add_card(const Cost& cost);
  // The next device, with a card. `name`: of the streams by which messages leave it.
  void add_device(int card, const std::string& name, int lanes = 1);

  // From a device of a rank to another, by a wire that takes so long; it leaves behind `sent`.
  Message within(int from, int to, const Cost& wire, int64_t bytes, Work sent);
  // From a device to one of another rank. Messages of the two lanes by which a device sends,
  // Lane::kOut and kOutBack, do not wait for each other, but share its card.
  Message between(int from, int to, int64_t bytes, Work sent, bool back = false);
  // Returns when the message is there, to be received by a lane whose newest work is `lane`.
  Work expect(const Message& message, Work lane);

 private:
  struct Card {
    Cost cost;
    int departures, arrivals;  // resources
  };
  struct Device {
    int card;
    std::vector<int> leaving;  // streams: [lane]
    size_t messages = 0;       // they took these in turn
    int leaving_back = -1;     // stream
  };

  Timeline& timeline_;
  std::vector<Card> cards_;
  std::vector<Device> devices_;
  std::map<std::pair<int, int>, int> wires_;  // [from, to] streams
};

}  // namespace pagoda
