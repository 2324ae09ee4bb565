#include "tests/testing/storage/sim_disk.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace pagoda {
namespace {

// Versions kept per sector: the flushed one and this many newer. Older unflushed ones are forgotten
// so that a run that never flushes does not grow without bound.
constexpr size_t kVersions = 4;

uint32_t dice(uint64_t seed, uint64_t a, uint64_t b) {
  return philox(seed, RandomPurpose::kFaults, a, b)[0];
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

}  // namespace

SimDisk::NodePointer SimDisk::make_root() {
  auto root = std::make_shared<Node>();
  root->is_directory = true;
  return root;
}

SimDisk::NodePointer SimDisk::find(const std::string& path) const {
  NodePointer node = root_;
  for (const std::string& part : split(path)) {
    if (!node->is_directory) return nullptr;
    const auto entry = node->entries.find(part);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

SimDisk::Place SimDisk::place(const std::string& path) const {
  std::vector<std::string> parts = split(path);
  if (parts.empty()) return {};
  const std::string name = parts.back();
  parts.pop_back();
  std::string parent = "/";
  for (const std::string& part : parts) parent += part + "/";
  NodePointer directory = find(parent);
  if (directory && !directory->is_directory) directory = nullptr;
  return {directory, name};
}

SimDisk::NodePointer SimDisk::create_file(const std::string& path) {
  const auto [directory, name] = place(path);
  if (!directory) return nullptr;
  NodePointer& entry = directory->entries[name];
  if (entry) return entry->is_directory ? nullptr : entry;
  entry = std::make_shared<Node>();
  changes_.push_back({nullptr, directory, "", name, entry});
  return entry;
}

bool SimDisk::make_directory(const std::string& path) {
  NodePointer node = root_;
  for (const std::string& part : split(path)) {
    NodePointer& entry = node->entries[part];
    if (!entry) {
      entry = std::make_shared<Node>();
      entry->is_directory = true;
      changes_.push_back({nullptr, node, "", part, entry});
    }
    if (!entry->is_directory) return false;
    node = NodePointer(entry);
  }
  return true;
}

bool SimDisk::rename(const std::string& from, const std::string& to) {
  const auto [from_directory, from_name] = place(from);
  const auto [to_directory, to_name] = place(to);
  if (!from_directory || !to_directory) return false;
  const auto source = from_directory->entries.find(from_name);
  if (source == from_directory->entries.end()) return false;
  const NodePointer node = source->second;
  const auto target = to_directory->entries.find(to_name);
  if (target != to_directory->entries.end()) {
    const Node& old = *target->second;
    if (old.is_directory != node->is_directory) return false;
    if (old.is_directory && !old.entries.empty()) return false;
  }
  from_directory->entries.erase(source);
  to_directory->entries[to_name] = node;
  changes_.push_back({from_directory, to_directory, from_name, to_name, node});
  return true;
}

bool SimDisk::remove(const std::string& path) {
  const auto [directory, name] = place(path);
  if (!directory) return false;
  const auto entry = directory->entries.find(name);
  if (entry == directory->entries.end() || !entry->second->entries.empty()) return false;
  changes_.push_back({directory, nullptr, name, "", entry->second});
  directory->entries.erase(entry);
  return true;
}

void SimDisk::write(Node* file, int64_t offset, const std::byte* data, int64_t bytes) {
  CHECK(offset >= 0 && offset + bytes <= static_cast<int64_t>(file->bytes.size()));
  const int64_t number = ++writes_;
  const int64_t last = (offset + bytes - 1) / kSectorBytes;
  const auto copy_sector = [file](int64_t sector, std::byte* to) {
    const int64_t begin = sector * kSectorBytes;
    const auto size = static_cast<int64_t>(file->bytes.size());
    std::memcpy(to, file->bytes.data() + begin, std::min(kSectorBytes, size - begin));
  };
  for (int64_t sector = offset / kSectorBytes; sector <= last; ++sector) {
    auto& versions = file->unflushed[sector];
    if (versions.empty()) copy_sector(sector, versions.emplace_back().content.data());
  }
  std::memcpy(file->bytes.data() + offset, data, static_cast<size_t>(bytes));
  for (int64_t sector = offset / kSectorBytes; sector <= last; ++sector) {
    auto& versions = file->unflushed[sector];
    if (versions.size() == kVersions) versions.erase(versions.begin() + 1);
    versions.emplace_back().write = number;
    copy_sector(sector, versions.back().content.data());
  }
}

void SimDisk::flush(Node* file) {
  file->unflushed.clear();
  file->ever_flushed = true;
}

void SimDisk::flush_directory(Node* directory) {
  std::vector<Change> rest;
  for (const Change& change : changes_) {
    const bool touches =
        change.from_directory.get() == directory || change.to_directory.get() == directory;
    if (touches) {
      make_durable(change);
    } else {
      rest.push_back(change);
    }
  }
  changes_ = std::move(rest);
}

void SimDisk::make_durable(const Change& change) {
  if (change.from_directory) {
    auto& entries = change.from_directory->flushed_entries;
    const auto entry = entries.find(change.from);
    if (entry != entries.end() && entry->second == change.node) entries.erase(entry);
  }
  if (change.to_directory) change.to_directory->flushed_entries[change.to] = change.node;
}

void SimDisk::read_flushed(const Node& file, int64_t offset, std::byte* data, int64_t bytes) const {
  std::memcpy(data, file.bytes.data() + offset, static_cast<size_t>(bytes));
  for (const auto& [sector, versions] : file.unflushed) {
    const int64_t begin = std::max(offset, sector * kSectorBytes);
    const int64_t end = std::min(offset + bytes, (sector + 1) * kSectorBytes);
    if (begin >= end) continue;
    const std::byte* content = versions.front().content.data();
    std::memcpy(data + (begin - offset), content + (begin - sector * kSectorBytes),
                static_cast<size_t>(end - begin));
  }
}

void SimDisk::crash(uint64_t seed) {
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (dice(seed, 1, i) % 2 == 0) make_durable(changes_[i]);
  }
  changes_.clear();
  uint64_t nodes = 0;
  lose_power(root_.get(), seed, &nodes);
}

void SimDisk::lose_power(Node* node, uint64_t seed, uint64_t* nodes) {
  const uint64_t number = ++*nodes;
  node->locked = false;
  node->readers = 0;
  if (!node->is_directory) {
    lose_writes(node, seed);
    if (!node->ever_flushed && dice(seed, 2, number) % 2 == 0) node->bytes.clear();
    flush(node);
    return;
  }
  node->entries = node->flushed_entries;
  for (const auto& [name, child] : node->entries) lose_power(child.get(), seed, nodes);
}

void SimDisk::lose_writes(Node* file, uint64_t seed) {
  enum : uint32_t { kKept, kDropped, kTorn };
  for (const auto& [sector, versions] : file->unflushed) {
    const Node::Version* survivor = &versions.front();
    for (const Node::Version& version : versions) {
      if (version.write == 0) continue;
      const auto write = static_cast<uint64_t>(version.write);
      const uint32_t fate = dice(seed, 3, write) % 3;
      const uint64_t part = write * 0x100000000u + static_cast<uint64_t>(sector);
      const bool kept = fate == kKept || (fate == kTorn && dice(seed, 4, part) % 2 == 0);
      if (kept) survivor = &version;
    }
    const int64_t begin = sector * kSectorBytes;
    const auto size = static_cast<int64_t>(file->bytes.size());
    std::memcpy(file->bytes.data() + begin, survivor->content.data(),
                static_cast<size_t>(std::min(kSectorBytes, size - begin)));
  }
}

}  // namespace pagoda
