#include "commands/gguf_export.h"

#include <filesystem>

#include "base/log.h"
#include "base/stop_signal.h"
#include "checkpoint/stored_dtype.h"
#include "gguf/gguf_architecture.h"
#include "gguf/gguf_model.h"
#include "gguf/gguf_tokenizer.h"

namespace pagoda {

Status export_gguf(WeightSource& source, const HfFolder& original, const std::string& path,
                   GgufType type) {
  const std::string name = std::filesystem::path(path).stem();
  ASSIGN_OR_RETURN(GgufModel model, describe_for_gguf(original, type, name));
  RETURN_IF_ERROR(
      add_tokenizer_entries(original.directory(), original.config().vocab_size, model.entries));
  RETURN_IF_ERROR(write_gguf(source, original.table(), std::move(model), path));
  const std::string nearly = computed_nearly(original.config());
  if (!nearly.empty()) log_warn(nearly);
  return Status();
}

Status write_gguf(WeightSource& source, const TensorTable& table, GgufModel model,
                  const std::string& path) {
  ASSIGN_OR_RETURN(GgufWriter writer,
                   GgufWriter::create(path, model.entries, std::move(model.tensors)));
  std::vector<float> values, changed;
  int64_t held = -1;  // the record in `values`
  for (const GgufPlace& place : model.places) {
    RETURN_IF_ERROR(stop_status("the export"));
    const TensorSpec& tensor = table.tensors[static_cast<size_t>(place.tensor)];
    if (tensor.record != held) {
      held = tensor.record;
      values.resize(static_cast<size_t>(table.records[static_cast<size_t>(held)].num_elements));
      RETURN_IF_ERROR(source.read_record(held, values.data()));
    }
    const float* from = values.data() + tensor.offset;
    if (const int64_t bad = first_non_finite(from, tensor.num_elements()); bad >= 0) {
      return Status(Exit::kDiverged,
                    strf("tensor \"%s\" is not finite at element %lld; take an earlier checkpoint",
                         tensor.name.c_str(), (long long)bad));
    }
    int64_t count = tensor.stored_elements();
    if (place.order != GgufOrder::kAsItIs) {
      changed = in_order(place, from, tensor.shape[0], tensor.shape[1]);
      from = changed.data();
      count = std::ssize(changed);
    }
    if (tensor.is_correction()) {
      changed.resize(static_cast<size_t>(count));
      join_correction(from, count, changed.data());
      from = changed.data();
    }
    RETURN_IF_ERROR(writer.write(place.in_file, place.first, from, count));
  }
  return writer.finish();
}

}  // namespace pagoda
