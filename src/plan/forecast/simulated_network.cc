#include "plan/forecast/simulated_network.h"

#include <algorithm>

#include "base/bytes.h"

namespace pagoda {

int SimulatedNetwork::add_card(const Cost& cost) {
  const int departures = timeline_.add_resource(1), arrivals = timeline_.add_resource(1);
  cards_.push_back({cost, departures, arrivals});
  return static_cast<int>(cards_.size()) - 1;
}

void SimulatedNetwork::add_device(int card, const std::string& name, int lanes) {
  Device& device = devices_.emplace_back(Device{card, {}});
  for (int n = 0; n < lanes; ++n) device.leaving.push_back(timeline_.add_stream(name));
  device.leaving_back = timeline_.add_stream(name);
}

SimulatedNetwork::Message SimulatedNetwork::within(int from, int to, const Cost& wire,
                                                   int64_t bytes, Work sent) {
  const double seconds = wire.seconds(static_cast<double>(bytes));
  if (seconds <= 0) return {sent};
  const auto [at, is_new] = wires_.try_emplace({from, to}, 0);
  if (is_new) at->second = timeline_.add_stream(strf("wire %d to %d", from, to));
  return {timeline_.add(at->second, Timeline::kNone, 0, seconds, {&sent, 1})};
}

SimulatedNetwork::Message SimulatedNetwork::between(int from, int to, int64_t bytes, Work sent,
                                                    bool back) {
  Device& device = devices_[static_cast<size_t>(from)];
  const Card& sender = cards_[static_cast<size_t>(device.card)];
  const Card& receiver = cards_[static_cast<size_t>(devices_[static_cast<size_t>(to)].card)];
  const double own_s = sender.cost.unit_s, their_s = receiver.cost.unit_s;
  const double byte_s = std::max(own_s, their_s);
  const auto part = [&](double unit_s) { return byte_s > 0 ? unit_s / byte_s : 1; };
  const int lane =
      back ? device.leaving_back : device.leaving[device.messages++ % device.leaving.size()];
  const double seconds = byte_s * static_cast<double>(bytes);
  const Work moves = timeline_.add(lane, receiver.arrivals, part(their_s), seconds, {&sent, 1});
  if (own_s > 0) timeline_.take_too(moves, sender.departures, part(own_s));
  const Work ready =
      timeline_.add(Timeline::kNone, Timeline::kNone, 0, sender.cost.fixed_s, {&moves, 1});
  return {ready, moves};
}

SimulatedNetwork::Work SimulatedNetwork::expect(const Message& message, Work lane) {
  if (message.moves != Timeline::kNothing) timeline_.wait_too(message.moves, lane);
  return message.ready;
}

}  // namespace pagoda
