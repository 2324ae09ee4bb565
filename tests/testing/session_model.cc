#include "tests/testing/session_model.h"

namespace pagoda {

SessionModel::SessionModel(const std::string& folder, DType dtype, int64_t microbatch_tokens,
                           int64_t microbatches, CacheSize cache, RouterLosses losses,
                           const std::vector<std::string>& freeze)
    : folder_(std::move(HfFolder::open(folder).value())),
      storage_(std::move(open_storage(IoKind::kThreads, dir_.path()).value())) {
  SessionOptions options;
  options.size = {microbatches, microbatch_tokens, dtype, true, cache};
  options.adam = {0.9, 0.95, 1e-8, 0.1};
  options.losses = losses;
  options.size.z_loss = losses.z > 0;
  options.frozen = freeze_tensors(TensorTable::make(folder_.config()), freeze).value();
  options.devices.front().threads = options.optimizer_threads = 2;
  options.device_bytes = options.host_bytes = 256 * kMiB;
  options.directories = {dir_.file("store")};
  options.page_slots = 1;
  auto session = Session::create(folder_.config(), options, storage_.get());
  CHECK(session.ok(), "%s", session.status().message().c_str());
  session_ = session.take();
  CHECK(load_weights(*weights_of_folder(folder_), *session_).ok());
  ledger_ = std::make_unique<Ledger>(
      false, 0, std::vector<int64_t>(session_->table().records.size(), 0));
  runner_ = std::make_unique<StepRunner>(session_.get(), ledger_.get(), 1.0);
}

std::vector<std::byte> SessionModel::page(PageId id, int64_t bytes) {
  Stream& s = session_->executor().host_stream();
  const PageUse use{id, Place::host(), Access::kRead};
  const Lease lease = session_->pager().acquire({&use, 1}, s, 0);
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  s.copy(out.data(), lease.data(0), bytes);
  s.synchronize();
  return out;
}

std::vector<float> SessionModel::tensor(int64_t t, PageId id) {
  const TensorSpec& spec = table().tensors[t];
  const DType dtype = session_->options().size.dtype;
  const int64_t elements = table().records[spec.record].num_elements;
  const std::vector<std::byte> bytes = page(id, elements * dtype_bytes(dtype));
  std::vector<float> values;
  for (int64_t i = spec.offset; i < spec.offset + spec.num_elements(); ++i) {
    values.push_back(dtype == DType::kF32
                         ? reinterpret_cast<const float*>(bytes.data())[i]
                         : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]));
  }
  return values;
}

std::vector<float> SessionModel::gradient(int64_t t) {
  return tensor(t, session_->pages().gradient(table().tensors[t].record));
}

std::vector<float> SessionModel::logits(const StepBatch& batch, int64_t microbatch) {
  const ModelConfig& c = session_->config();
  const DType dt = session_->options().size.dtype;
  const int64_t t = session_->options().size.microbatch_tokens, d = c.hidden_size;
  std::vector<std::byte> x;
  CHECK(runner_->evaluate_layers(batch).ok());
  x = page(session_->pages().layer_input(c.num_layers, microbatch), t * d * dtype_bytes(dt));
  const RecordSpec& head = table().records[table().head()];
  const auto weights = page(session_->pages().weights(table().head()),
                            head.num_elements * dtype_bytes(dt));
  const auto embedding = page(session_->pages().weights(0), c.vocab_size * d * dtype_bytes(dt));
  const void* output = c.tie_word_embeddings ? embedding.data()
                                             : weights.data() + d * dtype_bytes(dt);
  std::vector<std::byte> normed(x.size());
  std::vector<float> rstd(static_cast<size_t>(t)), out(static_cast<size_t>(t * c.vocab_size));
  Stream& s = session_->executor().host_stream();
  cpu_ops().rmsnorm(dt, x.data(), weights.data(), static_cast<float>(c.rms_norm_eps), t, 1, d, d,
                    normed.data(), rstd.data(), s);
  cpu_ops().linear(dt, normed.data(), output, t, d, c.vocab_size, DType::kF32, out.data(), s);
  s.synchronize();
  for (float& logit : out) logit *= static_cast<float>(c.logits_scale);
  return out;
}

}  // namespace pagoda
