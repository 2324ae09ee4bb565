#include "data/normalizer.h"

#include "data/nfc.h"

namespace pagoda {

namespace {

bool apply_step(const NormalizerStep& step, AlignedText* text, MatchMemory* memory) {
  switch (step.kind) {
    case NormalizerStep::Kind::kNfc:
      if (!surely_nfc(text->text())) text->transform(nfc(text->text()));
      return true;
    case NormalizerStep::Kind::kPrepend:
      if (!text->empty()) text->prepend(step.content);
      return true;
    case NormalizerStep::Kind::kReplace:
      std::vector<TokenRange> matches;
      const bool whole = step.pattern->find_all(text->text(), memory, &matches);
      text->replace(matches, step.content);
      return whole;
  }
  return true;
}

}  // namespace

bool Normalizer::apply(AlignedText* text, MatchMemory* memory) const {
  bool whole = true;
  for (const NormalizerStep& step : steps_) whole = apply_step(step, text, memory) && whole;
  return whole;
}

}  // namespace pagoda
