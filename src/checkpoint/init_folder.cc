#include "checkpoint/init_folder.h"

#include <algorithm>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/random.h"
#include "checkpoint/hf_writer.h"
#include "model/json.h"
#include "tokenizer/tokenizer.h"

namespace pagoda {

namespace {

constexpr int64_t kDrawnElements = int64_t{1} << 16;

float initial_value(const ModelConfig& config, TensorInit init, uint64_t seed, int64_t tensor,
                    int64_t element) {
  if (init == TensorInit::kOnes) return 1.0f;
  if (init == TensorInit::kZeros) return 0.0f;
  return static_cast<float>(config.initializer_range) *
         random_normal(seed, RandomPurpose::kInit, static_cast<uint64_t>(tensor),
                       static_cast<uint64_t>(element));
}

Status write_random_weights(const ModelConfig& config, const TensorTable& table, uint64_t seed,
                            HfWriter& writer) {
  std::vector<float> values(kDrawnElements);
  for (const int64_t t : writer.order()) {
    const TensorSpec& tensor = table.tensors[t];
    const int64_t total = tensor.num_elements();
    for (int64_t first = 0; first < total; first += kDrawnElements) {
      const int64_t count = std::min(kDrawnElements, total - first);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = initial_value(config, tensor.init, seed, t, first + i);
      }
      RETURN_IF_ERROR(writer.append(t, values.data(), count));
    }
  }
  return Status();
}

Status write_tokenizer(const InitOptions& options, NewFolder& folder) {
  if (!options.tokenizer_directory.empty()) {
    return copy_tokenizer_files(options.tokenizer_directory, folder);
  }
  RETURN_IF_ERROR(write_text_file(folder.file("tokenizer.json"), byte_tokenizer_json()));
  return write_text_file(folder.file("tokenizer_config.json"), byte_tokenizer_config_json());
}

Status check_tokenizer(const InitOptions& options, const ModelConfig& config) {
  if (!options.tokenizer_directory.empty()) {
    const std::string path = options.tokenizer_directory + "/tokenizer.json";
    return InputFile::open(path, Links::kFollow).status();
  }
  if (config.vocab_size >= kByteVocabSize) return Status();
  return Status(Exit::kBadData,
                strf("%s: \"vocab_size\" is %lld; the byte tokenizer needs at least %lld, raise it "
                     "or name a tokenizer",
                     printable(options.config_path).c_str(), (long long)config.vocab_size,
                     (long long)kByteVocabSize));
}

}  // namespace

Status init_folder(const InitOptions& options) {
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(options.config_path, Links::kFollow, JsonLimits().max_bytes));
  ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::parse(text, options.config_path));
  RETURN_IF_ERROR(check_tokenizer(options, config));
  const TensorTable table = TensorTable::make(config);
  const StoredDType dtype = stored_dtype_of(options.dtype);
  HfWriter::Options out;
  out.directory = options.out_directory;
  out.layout = usual_layout(*config.family);
  out.dtypes.assign(table.tensors.size(), dtype);
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    if (table.tensors[t].is_correction()) out.dtypes[t] = StoredDType::kF32;
  }
  ASSIGN_OR_RETURN(out.config_json,
                   config_with_dtype(config.quantised() ? config_unquantised(text) : text, dtype,
                                     options.config_path));
  ASSIGN_OR_RETURN(HfWriter writer, HfWriter::create(out, table));
  RETURN_IF_ERROR(write_random_weights(config, table, options.seed, writer));
  RETURN_IF_ERROR(write_tokenizer(options, writer.folder()));
  return writer.finish();
}

}  // namespace pagoda
