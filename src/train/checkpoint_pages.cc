#include "train/checkpoint_pages.h"

#include <limits>

#include "base/log.h"
#include "config/run_config.h"
#include "model/hidden_parts.h"
#include "parallel/host_name.h"
#include "train/run_setup.h"
#include "train/session.h"

namespace pagoda {
namespace {

Status names_other_pages(const RunCheckpoint& checkpoint) {
  return Status(Exit::kMismatch,
                strf("the checkpoint of step %lld names other records or more pages than a run of "
                     "its model has; it was left alone: resume from another one",
                     (long long)checkpoint.step));
}

// A checkpoint's own numbers may be forged: kMismatch if no run has such records.
Result<RunShape> shape_of(const RunCheckpoint& checkpoint) {
  ASSIGN_OR_RETURN(const ModelConfig config, model_of(checkpoint));
  RunSetup setup;
  setup.size.microbatches = checkpoint.microbatches;
  setup.size.microbatch_tokens = checkpoint.microbatch_tokens;
  setup.size.dtype = saved_dtype(checkpoint);
  ASSIGN_OR_RETURN(setup.adam.state, state_format_of(checkpoint));
  RunConfig run;
  run.train.freeze = RunConfig::saved_freeze(checkpoint.resolved_config);
  const Status none = names_other_pages(checkpoint);
  if (!set_frozen(run, config, setup).ok()) return none;
  RunShape shape = make_run_shape(model_shape(config), setup);
  if (checkpoint.record_steps.size() != shape.records.size()) return none;
  return shape;
}

// kMismatch if no run has such pages.
Result<PageTable> page_table_of(const RunCheckpoint& checkpoint, const RunShape& shape) {
  const Status none = names_other_pages(checkpoint);
  if (PageTable::count(shape) > kMostPages) return none;
  PageTable pages(shape);
  __int128 bytes = 0;
  for (int64_t i = 0; i < pages.num_common(); ++i) {
    const int64_t page_bytes = kPageHeaderBytes + pages.pages[static_cast<size_t>(i)].bytes;
    bytes += checkpoint.page_slots * __int128{page_bytes};
  }
  if (bytes > std::numeric_limits<int64_t>::max()) return none;
  return pages;
}

// The pages of one store, as its page file was made for: of dense records, those that it lists are
// durable (page_specs()).
std::vector<PageSpec> specs_of(const RunShape& shape, const PageTable& pages,
                               const CheckpointStore& store) {
  std::vector<PageSpec> specs = page_specs(shape, pages);
  specs.erase(specs.begin() + pages.num_common(), specs.end());
  for (PageSpec& page : specs) {
    const bool of_expert =
        page.record < shape.records.size() && shape.records[page.record].expert >= 0;
    page.durable = page.durable && of_expert;
    page.here = page.copied = false;
  }
  for (const PageVersion& version : store.pages) {
    if (version.page >= specs.size()) continue;  // PageFile::open() says so
    specs[version.page].durable = specs[version.page].here = true;
  }
  return specs;
}

}  // namespace

Result<ModelConfig> model_of(const RunCheckpoint& checkpoint) {
  ASSIGN_OR_RETURN(ModelConfig config,
                   ModelConfig::parse(checkpoint.model_json, "the checkpoint's config.json"));
  const auto cut = with_hidden_parts(std::move(config),
                                     RunConfig::saved_hidden_shares(checkpoint.resolved_config));
  if (!cut.ok()) return names_other_pages(checkpoint);
  return cut;
}

DType saved_dtype(const RunCheckpoint& checkpoint) {
  return checkpoint.dtype == dtype_name(DType::kF32) ? DType::kF32 : DType::kBF16;
}

Result<StateFormat> state_format_of(const RunCheckpoint& checkpoint) {
  StateFormat format;
  if (parse_stored_state(checkpoint.state_format, &format)) return format;
  return Status(Exit::kMismatch,
                strf("the checkpoint of step %lld keeps optimizer state as \"%s\", which this "
                     "build does not read; it is untouched: use the version that wrote it",
                     (long long)checkpoint.step, checkpoint.state_format.c_str()));
}

Status check_store_is_there(const CheckpointStore& store, int64_t step, Storage* storage) {
  const std::string path = PageFile::Options{store.directories, store.file_name}.path(0);
  if (storage->exists(path)) return Status();
  return Status(Exit::kNoCheckpoint,
                strf("%s, which has pages of step %lld and was written on %s, is not in reach of "
                     "%s; nothing was changed: put it back, start where it is, or name its folder "
                     "as memory.disk",
                     printable(path).c_str(), (long long)step,
                     store.host.empty() ? "some machine" : printable(store.host).c_str(),
                     host_name().c_str()));
}

Result<std::unique_ptr<CheckpointPages>> CheckpointPages::open_some(const RunCheckpoint& checkpoint,
                                                                    Storage* storage) {
  ASSIGN_OR_RETURN(RunShape shape, shape_of(checkpoint));
  ASSIGN_OR_RETURN(PageTable table, page_table_of(checkpoint, shape));
  std::unique_ptr<CheckpointPages> all(new CheckpointPages(std::move(shape), std::move(table)));
  const size_t durable = 2 * checkpoint.record_steps.size();
  all->store_of_.assign(durable, -1);
  all->generation_.assign(durable, 0);
  for (size_t s = 0; s < checkpoint.stores.size(); ++s) {
    for (const PageVersion& version : checkpoint.stores[s].pages) {
      if (version.page >= durable || !is_durable(all->shape_, version.page)) {
        return names_other_pages(checkpoint);
      }
      all->store_of_[version.page] = static_cast<int32_t>(s);
      all->generation_[version.page] = version.generation;
    }
  }
  for (PageId page = 0; page < durable; ++page) {
    const bool missing = all->store_of_[page] < 0 && is_durable(all->shape_, page);
    if (missing) return names_other_pages(checkpoint);
  }
  for (const CheckpointStore& store : checkpoint.stores) {
    const PageFile::Options options = {
        store.directories, store.file_name, static_cast<int>(checkpoint.page_slots), {}, true};
    const Status there = check_store_is_there(store, checkpoint.step, storage);
    auto file = there.ok()
                    ? PageFile::open(storage, options, specs_of(all->shape_, all->pages_, store),
                                     store.store_id, store.pages)
                    : Result<std::unique_ptr<PageFile>>(there);
    all->statuses_.push_back(file.status());
    all->files_.push_back(file.ok() ? file.take() : nullptr);
  }
  return all;
}

Result<std::unique_ptr<CheckpointPages>> CheckpointPages::open(const RunCheckpoint& checkpoint,
                                                               Storage* storage) {
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointPages> all, open_some(checkpoint, storage));
  for (const Status& status : all->statuses_) RETURN_IF_ERROR(status);
  return all;
}

Status CheckpointPages::read(PageId page, HostMemory& memory) {
  PageFile& file = *files_[static_cast<size_t>(store_of_[page])];
  const int64_t bytes = kPageHeaderBytes + pages_.pages[page].bytes;
  if (memory.bytes() < bytes) {
    ASSIGN_OR_RETURN(memory, HostMemory::allocate(bytes));
  }
  file.read(page, memory.data(), Event()).wait();
  return file.status();
}

Status CheckpointPages::verify() {
  for (const auto& file : files_) RETURN_IF_ERROR(file->verify());
  return Status();
}

}  // namespace pagoda
