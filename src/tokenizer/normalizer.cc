#include "tokenizer/normalizer.h"

#include "tokenizer/nfc.h"

namespace pagoda {

namespace {

Status check_room(size_t bytes, size_t room_bytes) {
  if (bytes <= room_bytes) return Status();
  return Status(Exit::kBadData, "the normalizer of tokenizer.json makes a text many times longer");
}

Status apply_step(const NormalizerStep& step, AlignedText* text, MatchMemory* memory,
                  size_t room_bytes) {
  switch (step.kind) {
    case NormalizerStep::Kind::kNfc:
      if (!surely_nfc(text->text())) text->transform(nfc(text->text()));
      return check_room(text->text().size(), room_bytes);
    case NormalizerStep::Kind::kPrepend:
      if (!text->empty()) text->prepend(step.content);
      return check_room(text->text().size(), room_bytes);
    case NormalizerStep::Kind::kReplace:
      std::vector<TokenRange> matches;
      RETURN_IF_ERROR(step.pattern->find_all(text->text(), memory, &matches));
      RETURN_IF_ERROR(check_room(text->replaced_bytes(matches, step.content), room_bytes));
      text->replace(matches, step.content);
      return Status();
  }
  return Status();
}

}  // namespace

Status Normalizer::apply(AlignedText* text, MatchMemory* memory, size_t* room_bytes) const {
  for (const NormalizerStep& step : steps_) {
    RETURN_IF_ERROR(apply_step(step, text, memory, *room_bytes));
  }
  RETURN_IF_ERROR(check_room(text->text().size(), *room_bytes));
  *room_bytes -= text->text().size();
  return Status();
}

}  // namespace pagoda
