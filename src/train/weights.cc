#include "train/weights.h"

#include "base/log.h"
#include "base/number_text.h"
#include "base/output_file.h"
#include "base/stop_signal.h"
#include "checkpoint/hf_writer.h"
#include "model/hidden_parts.h"

namespace pagoda {
namespace {

class FolderWeights final : public WeightSource {
 public:
  explicit FolderWeights(const HfFolder& folder) : folder_(folder) {}
  const ModelConfig& config() const override { return folder_.config(); }
  std::string name() const override { return printable(folder_.directory()); }
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

class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(ModelConfig config, const RunCheckpoint& checkpoint, StateFormat state,
                    std::unique_ptr<CheckpointPages> pages)
      : config_(std::move(config)),
        table_(TensorTable::make(config_)),
        dtype_(saved_dtype(checkpoint)),
        state_(state),
        name_(strf("the checkpoint of step %lld", (long long)checkpoint.step)),
        pages_(std::move(pages)) {}
  const ModelConfig& config() const override { return config_; }
  std::string name() const override { return name_; }

  Status read_record(int64_t record, float* out) override {
    const int64_t trained = pages_->trained_elements(record);
    const int64_t frozen = table_.records[record].num_elements - trained;
    RETURN_IF_ERROR(pages_->read(pages_->table().weights(record), weights_page_));
    const std::byte* weights = weights_page_.data() + kPageHeaderBytes;
    if (trained > 0) {
      RETURN_IF_ERROR(pages_->read(pages_->table().state(record), state_page_));
      const StateLayout layout(state_, dtype_, trained);
      read_masters(layout, weights, state_page_.data() + kPageHeaderBytes, 0, trained, out);
    }
    widen_weights(dtype_, weights + trained * dtype_bytes(dtype_), frozen, out + trained);
    return Status();
  }

 private:
  ModelConfig config_;
  TensorTable table_;
  DType dtype_;
  StateFormat state_;
  std::string name_;
  std::unique_ptr<CheckpointPages> pages_;
  HostMemory weights_page_, state_page_;
};

class SessionWeights final : public WeightSource {
 public:
  explicit SessionWeights(Session& session) : session_(session) {}
  const ModelConfig& config() const override { return session_.config(); }
  std::string name() const override { return "the run"; }

  Status read_record(int64_t record, float* out) override {
    const RecordShape& shape = session_.shape().records[static_cast<size_t>(record)];
    const PageTable& pages = session_.pages();
    std::vector<PageUse> uses = {{pages.weights(record), Place::host(), Access::kRead}};
    if (shape.trains()) uses.push_back({pages.state(record), Place::host(), Access::kRead});
    Stream& stream = session_.executor().host_stream();
    const DType dtype = session_.options().size.dtype;
    const StateFormat format = session_.options().adam.state;
    Lease lease = session_.pager().acquire(uses, stream, 0);
    const std::byte* weights = lease.data(0);
    const std::byte* state = shape.trains() ? lease.data(1) : nullptr;
    stream.enqueue([=] {
      const int64_t trained = shape.trained_elements();
      if (state != nullptr) {
        read_masters(StateLayout(format, dtype, trained), weights, state, 0, trained, out);
      }
      widen_weights(dtype, weights + trained * dtype_bytes(dtype), shape.frozen_elements,
                    out + trained);
    });
    lease.release();
    stream.synchronize();
    return session_.pager().status();
  }

 private:
  Session& session_;
};

// Parts of experts (HiddenParts) from a source of whole ones, of the same model.
class PartsOfWeights final : public WeightSource {
 public:
  // `table`: of the parts. All outlive the object.
  PartsOfWeights(WeightSource& whole, const ModelConfig& config, const TensorTable& table)
      : whole_(whole), config_(config), table_(table), whole_table_(table_of_whole(config)) {}
  const ModelConfig& config() const override { return config_; }
  std::string name() const override { return whole_.name(); }

  Status read_record(int64_t record, float* out) override {
    const RecordSpec& spec = table_.records[static_cast<size_t>(record)];
    const int64_t from = record_of_whole(whole_table_, table_, record);
    if (spec.kind != RecordKind::kExpert) return whole_.read_record(from, out);
    if (from != held_) {
      values_.resize(
          static_cast<size_t>(whole_table_.records[static_cast<size_t>(from)].num_elements));
      RETURN_IF_ERROR(whole_.read_record(from, values_.data()));
      held_ = from;
    }
    take_part(config_, spec.expert, values_.data(), out);
    return Status();
  }

  static TensorTable table_of_whole(ModelConfig config) {
    config.parts = {};
    return TensorTable::make(config);
  }
  // The record of a model of whole experts that has this record of parts.
  static int64_t record_of_whole(const TensorTable& whole, const TensorTable& parts,
                                 int64_t record) {
    const RecordSpec& spec = parts.records[static_cast<size_t>(record)];
    if (spec.kind == RecordKind::kEmbedding) return whole.embedding();
    if (spec.kind == RecordKind::kHead) return whole.head();
    if (spec.kind == RecordKind::kLayer) return whole.layer(spec.layer);
    return whole.expert(spec.layer, spec.expert / spec.parts);
  }

 private:
  WeightSource& whole_;
  const ModelConfig& config_;
  const TensorTable& table_;
  TensorTable whole_table_;
  int64_t held_ = -1;  // the whole expert in values_
  std::vector<float> values_;
};

// Whole experts from a source of their parts.
class WholeWeights final : public WeightSource {
 public:
  // `parts` outlives the object, unless it is owned.
  explicit WholeWeights(WeightSource& parts, std::unique_ptr<WeightSource> owned = nullptr)
      : parts_(parts),
        owned_(std::move(owned)),
        config_(parts.config()),
        whole_table_(PartsOfWeights::table_of_whole(config_)),
        table_(TensorTable::make(config_)) {
    config_.parts = {};
  }
  const ModelConfig& config() const override { return config_; }
  std::string name() const override { return parts_.name(); }

  Status read_record(int64_t record, float* out) override {
    const RecordSpec& spec = whole_table_.records[static_cast<size_t>(record)];
    const int64_t parts = parts_.config().parts.count();
    switch (spec.kind) {
      case RecordKind::kEmbedding:
        return parts_.read_record(table_.embedding(), out);
      case RecordKind::kHead:
        return parts_.read_record(table_.head(), out);
      case RecordKind::kLayer:
        return parts_.read_record(table_.layer(spec.layer), out);
      case RecordKind::kExpert:
        break;
    }
    for (int64_t place = spec.expert * parts; place < (spec.expert + 1) * parts; ++place) {
      const int64_t part = table_.expert(spec.layer, place);
      values_.resize(static_cast<size_t>(table_.records[static_cast<size_t>(part)].num_elements));
      RETURN_IF_ERROR(parts_.read_record(part, values_.data()));
      put_part(parts_.config(), place, values_.data(), out);
    }
    return Status();
  }

 private:
  WeightSource& parts_;
  std::unique_ptr<WeightSource> owned_;
  ModelConfig config_;
  TensorTable whole_table_, table_;
  std::vector<float> values_;
};

std::unique_ptr<WeightSource> whole_experts(std::unique_ptr<WeightSource> source) {
  if (source->config().parts.count() == 1) return source;
  WeightSource& parts = *source;
  return std::make_unique<WholeWeights>(parts, std::move(source));
}

// Index of the first weight that is not finite, or -1.
int64_t first_non_finite(const bf16* weights, int64_t count) {
  constexpr uint16_t kExponent = 0x7f80u;
  bool found = false;
  for (int64_t i = 0; i < count; ++i) found |= (weights[i].bits & kExponent) == kExponent;
  if (!found) return -1;
  int64_t i = 0;
  while ((weights[i].bits & kExponent) != kExponent) ++i;
  return i;
}

// A record's masters are finite, but rounding may leave the range of bf16.
Status check_range(const WeightSource& source, const TensorTable& table, int64_t record,
                   const bf16* weights, const float* masters) {
  const RecordSpec& spec = table.records[record];
  const int64_t bad = first_non_finite(weights, spec.num_elements);
  if (bad < 0) return Status();
  int64_t t = spec.first_tensor;
  while (bad >= table.tensors[t].offset + table.tensors[t].num_elements()) ++t;
  return Status(
      Exit::kBadData,
      strf("%s: tensor \"%s\" holds %.9g at element %lld, which is beyond the range of bf16; the "
           "model is untouched: use it with train.dtype = \"fp32\", or use another one",
           source.name().c_str(), table.tensors[t].name.c_str(), double{masters[bad]},
           (long long)(bad - table.tensors[t].offset)));
}

// Fills one record's pages on the host. `layout`: of its state; state: nullptr if it has none.
Status fill_record(WeightSource& source, const TensorTable& table, int64_t record,
                   const StateLayout& layout, std::byte* weights, std::byte* state,
                   std::vector<float>& masters) {
  const int64_t all = table.records[static_cast<size_t>(record)].num_elements;
  masters.resize(static_cast<size_t>(all));
  RETURN_IF_ERROR(source.read_record(record, masters.data()));
  // What has no state comes behind what has.
  const int64_t begun = state != nullptr ? layout.num_elements : 0;
  if (state != nullptr) begin_state(layout, masters.data(), weights, state);
  begin_weights(StateLayout(layout.format, layout.weight_dtype, all - begun),
                masters.data() + begun, weights + begun * dtype_bytes(layout.weight_dtype));
  if (layout.weight_dtype == DType::kF32) return Status();
  return check_range(source, table, record, reinterpret_cast<const bf16*>(weights), masters.data());
}

}  // namespace

std::unique_ptr<WeightSource> weights_of_folder(const HfFolder& folder) {
  return std::make_unique<FolderWeights>(folder);
}

Result<std::unique_ptr<WeightSource>> weights_of_checkpoint(
    const RunCheckpoint& checkpoint, std::unique_ptr<CheckpointPages> pages) {
  ASSIGN_OR_RETURN(ModelConfig config, model_of(checkpoint));
  ASSIGN_OR_RETURN(const StateFormat state, state_format_of(checkpoint));
  return whole_experts(
      std::make_unique<CheckpointWeights>(std::move(config), checkpoint, state, std::move(pages)));
}

std::unique_ptr<WeightSource> weights_of_session(Session& session) {
  return std::make_unique<SessionWeights>(session);
}

Status load_weights(WeightSource& whole, Session& session) {
  std::unique_ptr<WeightSource> parts;
  if (session.config().parts.count() > 1) {
    parts = std::make_unique<PartsOfWeights>(whole, session.config(), session.table());
  }
  WeightSource& source = parts ? *parts : whole;
  const bool training = session.options().size.training;
  const DType dtype = session.options().size.dtype;
  Stream& stream = session.executor().host_stream();
  Status outcome;  // written on the stream, read after it is synchronised
  std::vector<float> masters;
  // Weights that only are read and all have a place on their device go there, never to disk.
  const bool stays = !training && session.memory().state_on_device;
  for (size_t r = 0; r < session.table().records.size(); ++r) {
    const auto record = static_cast<int64_t>(r);
    if (!session.shape().is_home(record)) continue;
    // The stream still refers to objects on this stack.
    if (stop_requested() != 0) break;
    std::vector<PageUse> uses = {
        {session.pages().weights(record), Place::host(), Access::kCreate}};
    const bool trains = session.shape().trains(record);
    if (trains) uses.push_back({session.pages().state(record), Place::host(), Access::kCreate});
    Lease lease = session.pager().acquire(uses, stream, 1);
    std::byte* weights = lease.data(0);
    std::byte* state = trains ? lease.data(1) : nullptr;
    const StateLayout layout(session.options().adam.state, dtype,
                             session.shape().records[r].trained_elements());
    const TensorTable& table = session.table();
    stream.enqueue([&source, &table, &outcome, &masters, record, layout, weights, state] {
      if (!outcome.ok()) return;
      outcome = fill_record(source, table, record, layout, weights, state, masters);
    });
    lease.release();
    if (!stays) continue;
    uses[0] = {uses[0].page, Place::on_device(session.shape().records[r].device -
                                              session.shape().own_devices().first),
               Access::kRead};
    session.pager().acquire(uses, stream, 1);
  }
  stream.synchronize();
  if (outcome.ok()) outcome = stop_status("loading the model");
  if (outcome.ok()) outcome = session.pager().status();
  return session.ranks().agree(outcome);
}

Status export_weights(WeightSource& source, const HfFolder& original, const std::string& directory,
                      std::optional<DType> dtype, const std::string& readme) {
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
  if (!readme.empty()) {
    RETURN_IF_ERROR(write_text_file(writer.folder().file("README.md"), readme));
  }
  return writer.finish();
}

namespace {

// Brings a record from the rank of its home to rank 0, in `values`, which others do not need. All
// ranks call it.
Status bring(Session& session, WeightSource& own, int64_t record, std::span<float> values) {
  RankGroup& ranks = session.ranks();
  const int home = session.shape().home_rank(record);
  RETURN_IF_ERROR(
      ranks.agree(ranks.rank() == home ? own.read_record(record, values.data()) : Status()));
  return ranks.pass(home, 0, std::as_writable_bytes(values));
}

// The weights of all ranks, as rank 0 asks for them: it names a record, and "" when it has done.
class GatheredWeights final : public WeightSource {
 public:
  GatheredWeights(Session& session, WeightSource& own) : session_(session), own_(own) {}
  const ModelConfig& config() const override { return own_.config(); }
  std::string name() const override { return own_.name(); }

  Status read_record(int64_t record, float* out) override {
    const auto elements =
        static_cast<size_t>(session_.table().records[static_cast<size_t>(record)].num_elements);
    Status brought = session_.ranks().agree(Status(), std::to_string(record)).status();
    if (brought.ok()) brought = bring(session_, own_, record, {out, elements});
    all_know_ = !brought.ok();
    return brought;
  }

  // Tells the others that this is the end, with this outcome.
  Status end(const Status& outcome) {
    return all_know_ ? outcome : session_.ranks().agree(outcome, "").status();
  }

 private:
  Session& session_;
  WeightSource& own_;
  bool all_know_ = false;  // all ranks know that it failed
};

Status send_records(Session& session, WeightSource& own) {
  const auto records = std::ssize(session.table().records);
  std::vector<float> values;
  for (;;) {
    ASSIGN_OR_RETURN(const std::vector<std::string> asked, session.ranks().agree(Status(), ""));
    if (asked[0].empty()) return Status();
    int64_t record = 0;
    if (!parse_int64(asked[0], record) || record < 0 || record >= records) {
      return Status(
          Exit::kIoError,
          "rank 0 asked for no record of this model; checkpoints are intact: see that all "
          "ranks run the same program, and resume");
    }
    const bool here = session.shape().is_home(record);
    values.resize(here ? session.table().records[static_cast<size_t>(record)].num_elements : 0);
    RETURN_IF_ERROR(bring(session, own, record, values));
  }
}

}  // namespace

Status export_session(Session& session, const HfFolder& original, const std::string& directory,
                      const std::string& readme) {
  const std::unique_ptr<WeightSource> own = weights_of_session(session);
  if (session.ranks().rank() != 0) return send_records(session, *own);
  GatheredWeights all(session, *own);
  std::unique_ptr<WeightSource> whole;
  if (session.config().parts.count() > 1) whole = std::make_unique<WholeWeights>(all);
  return all.end(export_weights(whole ? *whole : all, original, directory, std::nullopt, readme));
}

}  // namespace pagoda
