#include "train/weights.h"

#include <cstring>

#include "base/stop_signal.h"
#include "checkpoint/hf_writer.h"

namespace pagoda {
namespace {

class FolderWeights final : public WeightSource {
 public:
  explicit FolderWeights(const HfFolder& folder) : folder_(folder) {}
  const ModelConfig& config() const override { return folder_.config(); }
  Status read_record(int64_t record, float* out) override {
    const RecordSpec& spec = folder_.table().records[record];
    for (int64_t t = spec.first_tensor; t < spec.first_tensor + spec.num_tensors; ++t) {
      RETURN_IF_ERROR(folder_.read_tensor(t, out + folder_.table().tensors[t].offset));
    }
    return Status();
  }

 private:
  const HfFolder& folder_;
};

Result<ModelConfig> config_of(const RunCheckpoint& checkpoint) {
  return ModelConfig::parse(checkpoint.model_json, "the checkpoint's config.json");
}

RunShape shape_of(const RunCheckpoint& checkpoint, const ModelConfig& config) {
  StepSize size;
  size.microbatches = checkpoint.microbatches;
  size.microbatch_tokens = checkpoint.microbatch_tokens;
  size.dtype = checkpoint.dtype == dtype_name(DType::kF32) ? DType::kF32 : DType::kBF16;
  return make_run_shape(config, TensorTable::make(config), size,
                        static_cast<int>(checkpoint.devices));
}

class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(ModelConfig config, const RunCheckpoint& checkpoint,
                    std::unique_ptr<PageFile> file)
      : config_(std::move(config)),
        pages_(shape_of(checkpoint, config_)),
        table_(TensorTable::make(config_)),
        file_(std::move(file)) {}
  const ModelConfig& config() const override { return config_; }

  Status read_record(int64_t record, float* out) override {
    const PageId page = pages_.state(record);
    const int64_t bytes = kPageHeaderBytes + pages_.pages[page].bytes;
    if (buffer_.bytes() < bytes) {
      ASSIGN_OR_RETURN(buffer_, HostMemory::allocate(bytes));
    }
    file_->read(page, buffer_.data(), Event()).wait();
    RETURN_IF_ERROR(file_->status());
    std::memcpy(out, buffer_.data() + kPageHeaderBytes,
                static_cast<size_t>(table_.records[record].num_elements) * sizeof(float));
    return Status();
  }

 private:
  ModelConfig config_;
  PageTable pages_;
  TensorTable table_;
  std::unique_ptr<PageFile> file_;
  HostMemory buffer_;
};

// Fills one record's pages on the host.
Status fill_record(WeightSource& source, int64_t record, int64_t n, DType dtype, bool training,
                   std::byte* weights, float* state, std::vector<float>& scratch) {
  float* master = state;
  if (!training) {
    scratch.resize(static_cast<size_t>(n));
    master = scratch.data();
  }
  RETURN_IF_ERROR(source.read_record(record, master));
  if (dtype == DType::kF32) {
    std::memcpy(weights, master, static_cast<size_t>(n) * sizeof(float));
  } else {
    auto* rounded = reinterpret_cast<bf16*>(weights);
    for (int64_t i = 0; i < n; ++i) rounded[i] = bf16_round_weight(master[i]);
  }
  if (training) std::memset(state + n, 0, static_cast<size_t>(n) * 2 * sizeof(float));
  return Status();
}

}  // namespace

std::unique_ptr<WeightSource> weights_of_folder(const HfFolder& folder) {
  return std::make_unique<FolderWeights>(folder);
}

Result<std::unique_ptr<PageFile>> open_checkpoint_pages(const RunCheckpoint& checkpoint,
                                                        Storage* storage) {
  ASSIGN_OR_RETURN(const ModelConfig config, config_of(checkpoint));
  return Session::open_file(PageTable(shape_of(checkpoint, config)),
                            {checkpoint.directories, checkpoint.file_name,
                             static_cast<int>(checkpoint.page_slots)},
                            storage, checkpoint.store_id, checkpoint.pages);
}

Result<std::unique_ptr<WeightSource>> weights_of_checkpoint(const RunCheckpoint& checkpoint,
                                                            Storage* storage) {
  ASSIGN_OR_RETURN(ModelConfig config, config_of(checkpoint));
  ASSIGN_OR_RETURN(std::unique_ptr<PageFile> file, open_checkpoint_pages(checkpoint, storage));
  return std::unique_ptr<WeightSource>(
      std::make_unique<CheckpointWeights>(std::move(config), checkpoint, std::move(file)));
}

Status load_weights(WeightSource& source, Session& session) {
  const bool training = session.options().size.training;
  const DType dtype = session.options().size.dtype;
  Stream& stream = session.executor().host_stream();
  Status outcome;  // written on the stream, read after it is synchronised
  std::vector<float> scratch;
  // Weights that only are read and all have a place on their device go there, never to disk.
  const bool stays = !training && session.memory().state_on_device;
  for (size_t r = 0; r < session.table().records.size(); ++r) {
    const auto record = static_cast<int64_t>(r);
    // The stream still refers to what is on this stack.
    if (stop_requested() != 0) break;
    std::vector<PageUse> uses = {
        {session.pages().weights(record), Place::host(), Access::kCreate}};
    if (training) uses.push_back({session.pages().state(record), Place::host(), Access::kCreate});
    Lease lease = session.pager().acquire(uses, stream, 1);
    std::byte* weights = lease.data(0);
    auto* state = training ? reinterpret_cast<float*>(lease.data(1)) : nullptr;
    const int64_t n = session.table().records[r].num_elements;
    stream.enqueue([&source, &outcome, &scratch, record, n, dtype, training, weights, state] {
      if (!outcome.ok()) return;
      outcome = fill_record(source, record, n, dtype, training, weights, state, scratch);
    });
    lease.release();
    if (!stays) continue;
    uses[0] = {uses[0].page, Place::on_device(session.shape().records[r].device), Access::kRead};
    session.pager().acquire(uses, stream, 1);
  }
  stream.synchronize();
  RETURN_IF_ERROR(outcome);
  RETURN_IF_ERROR(stop_status("loading the model"));
  return session.pager().status();
}

Status export_weights(WeightSource& source, const HfFolder& original, const std::string& directory,
                      std::optional<DType> dtype) {
  ASSIGN_OR_RETURN(HfWriter::Options options, HfWriter::options_for(directory, original, dtype));
  const TensorTable& table = original.table();
  ASSIGN_OR_RETURN(HfWriter writer, HfWriter::create(std::move(options), table));
  std::vector<float> values;
  int64_t held = -1;  // the record in `values`
  for (const int64_t t : writer.order()) {
    const TensorSpec& tensor = table.tensors[t];
    if (tensor.record != held) {
      held = tensor.record;
      values.resize(static_cast<size_t>(table.records[held].num_elements));
      RETURN_IF_ERROR(source.read_record(held, values.data()));
    }
    RETURN_IF_ERROR(writer.append(t, values.data() + tensor.offset, tensor.num_elements()));
  }
  return writer.finish();
}

}  // namespace pagoda
