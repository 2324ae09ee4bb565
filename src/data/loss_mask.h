// Finds the parts of a rendered conversation that are trained, and the weights of its tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/chat_preset.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {

// The turns of a conversation that are trained: each of the assistant's with its end token, only
// the last of those, or every token.
enum class TrainOn : uint8_t { kAssistant, kLast, kAll };
const char* name_of(TrainOn train_on);

// Bytes of a text and the weight of predicting them; 0: masked.
struct TrainedSpan {
  size_t begin, end;
  float weight;
};

// Whether turns[i] is trained: its "train" says so, else `train_on` does.
bool is_trained(const std::vector<Turn>& turns, size_t i, TrainOn train_on);

// Disjoint spans in order. A turn's "train" says whether it is trained, else `train_on` does; its
// "weight" says how much. With kAll a turn's span is the whole turn, and bytes outside of turns are
// trained too; else it is [trained_begin, trained_end).
std::vector<TrainedSpan> trained_spans(const std::vector<Turn>& turns, const RenderedChat& chat,
                                       TrainOn train_on);

// A token's weight is the largest of the spans its bytes overlap (an empty token has the byte it
// stands before), 0 where there is none. REQUIRES: ranges in order of their begins.
std::vector<float> token_weights(std::span<const TokenRange> ranges,
                                 std::span<const TrainedSpan> spans);

}  // namespace pagoda
