#include "tokenizer/normalizer.h"

#include "tokenizer/nfc.h"

namespace pagoda {

namespace {

Status apply_step(const NormalizerStep& step, AlignedText* text, MatchMemory* memory) {
  switch (step.kind) {
    case NormalizerStep::Kind::kNfc:
      if (!surely_nfc(text->text())) text->transform(nfc(text->text()));
      return Status();
    case NormalizerStep::Kind::kPrepend:
      if (!text->empty()) text->prepend(step.content);
      return Status();
    case NormalizerStep::Kind::kReplace:
      std::vector<TokenRange> matches;
      RETURN_IF_ERROR(step.pattern->find_all(text->text(), memory, &matches));
      text->replace(matches, step.content);
      return Status();
  }
  return Status();
}

}  // namespace

Status Normalizer::apply(AlignedText* text, MatchMemory* memory) const {
  for (const NormalizerStep& step : steps_) RETURN_IF_ERROR(apply_step(step, text, memory));
  return Status();
}

}  // namespace pagoda
