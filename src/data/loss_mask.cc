#include "data/loss_mask.h"

#include <algorithm>

namespace pagoda {

namespace {

constexpr const char* kTrainOnNames[] = {"assistant", "last", "all"};

bool is_answer(const Turn& turn) { return turn.role == Role::kAssistant && !turn.given; }

size_t last_answer(const std::vector<Turn>& turns) {
  size_t last = turns.size();
  for (size_t i = 0; i < turns.size(); ++i) {
    if (is_answer(turns[i])) last = i;
  }
  return last;
}

bool trained_by_default(const Turn& turn, bool is_last_answer, TrainOn train_on) {
  switch (train_on) {
    case TrainOn::kAssistant:
      return is_answer(turn);
    case TrainOn::kLast:
      return is_last_answer;
    case TrainOn::kAll:
      return true;
  }
  CHECK(false);
  return false;
}

}  // namespace

const char* name_of(TrainOn train_on) { return kTrainOnNames[static_cast<size_t>(train_on)]; }

bool is_trained(const std::vector<Turn>& turns, size_t i, TrainOn train_on) {
  return turns[i].train.value_or(trained_by_default(turns[i], i == last_answer(turns), train_on));
}

std::vector<TrainedSpan> trained_spans(const std::vector<Turn>& turns, const RenderedChat& chat,
                                       TrainOn train_on) {
  CHECK(turns.size() == chat.turns.size());
  const bool all = train_on == TrainOn::kAll;
  const size_t last = last_answer(turns);
  std::vector<TrainedSpan> spans;
  size_t done = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    const RenderedTurn& place = chat.turns[i];
    if (all && place.begin > done) spans.push_back({done, place.begin, 1.0f});
    const bool train = turns[i].train.value_or(trained_by_default(turns[i], i == last, train_on));
    const size_t begin = all ? place.begin : place.trained_begin;
    const size_t end = all ? place.end : place.trained_end;
    if (train && begin < end) spans.push_back({begin, end, turns[i].weight});
    done = place.end;
  }
  return spans;
}

std::vector<float> token_weights(std::span<const TokenRange> ranges,
                                 std::span<const TrainedSpan> spans) {
  std::vector<float> weights;
  weights.reserve(ranges.size());
  size_t first = 0;  // span that is not wholly before the token
  for (const TokenRange& range : ranges) {
    const size_t end = std::max(range.end, range.begin + 1);
    while (first < spans.size() && spans[first].end <= range.begin) ++first;
    float weight = 0;
    for (size_t s = first; s < spans.size() && spans[s].begin < end; ++s) {
      weight = std::max(weight, spans[s].weight);
    }
    weights.push_back(weight);
  }
  return weights;
}

}  // namespace pagoda
