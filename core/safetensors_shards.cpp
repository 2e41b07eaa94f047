#include "tapestry/core/safetensors_shards.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/internal/file_mapping.h"
#include "tapestry/core/internal/gguf_format.h"
#include "tapestry/core/packed_tensor.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::uintmax_t kMaxIndex = 256 << 20;

template <class... Parts>
void require(bool ok, const std::string& path, const Parts&... parts) {
  check<IoError>(ok, "[safetensors] ", path, ": ", parts...);
}

/// Pairs of a tensor's name and its file's name.
std::vector<std::pair<std::string, std::string>> read_index(const std::string& path) {
  std::error_code error;
  require(fs::is_regular_file(path, error), path, "is not a file, or does not exist");
  const std::uintmax_t size = fs::file_size(path, error);
  require(!error && size <= kMaxIndex, path, "cannot be read, or is larger than 256 MiB");
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  require(in.is_open() && !in.bad(), path, "cannot be read");
  const Json root = Json::parse(text, nullptr, false);
  require(root.is_object(), path, "is not a JSON object");
  const auto map = root.find("weight_map");
  require(map != root.end() && map->is_object(), path, "has no object weight_map");
  std::vector<std::pair<std::string, std::string>> tensors;
  for (const auto& [name, value] : map->items()) {
    const std::string* const file = value.get_ptr<const std::string*>();
    // A file elsewhere could be any file that the user may read.
    const bool plain = file && !file->empty() && *file != "." && *file != ".." &&
                       file->find('/') == std::string::npos && file->find('\0') == std::string::npos;
    require(plain, path, "the file of tensor \"", detail::gguf_printable(name),
            "\" must be the name of a file in the index's folder");
    tensors.emplace_back(name, *file);
  }
  return tensors;
}

}  // namespace

struct SafetensorsShards::Impl {
  struct Shard {
    std::string path;
    std::shared_ptr<detail::FileMapping> mapping;
    std::uint64_t data_start = 0;
    std::unordered_map<std::string, SafetensorsFile::Entry> tensors;
  };
  struct Place {
    const Shard* shard;
    const SafetensorsFile::Entry* entry;
  };
  std::string path;
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<Entry> entries;
  std::unordered_map<std::string, Place> places;
  std::unordered_map<std::string, std::size_t> by_name;

  const Shard& open(const std::string& file) {
    auto shard = std::make_unique<Shard>();
    shard->path = file;
    const SafetensorsFile header(file);  // checks the file
    shard->mapping = detail::FileMapping::open("safetensors", file);
    require(shard->mapping->size() == header.bytes(), file, "changed while it was opened");
    std::uint64_t data = 0;
    for (const SafetensorsFile::Entry& entry : header.entries()) {
      data = std::max(data, entry.end);
      shard->tensors.emplace(entry.name, entry);
    }
    shard->data_start = header.bytes() - data;  // the data reach to the end of the file
    shards.push_back(std::move(shard));
    return *shards.back();
  }
  void put(const std::string& name, const Shard& shard, const SafetensorsFile::Entry& entry) {
    entries.push_back({name, entry.dtype, entry.sizes});
    places.emplace(name, Place{&shard, &entry});
  }
};

SafetensorsShards::SafetensorsShards(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    file = (fs::path(path) / kModel).string();
    if (!fs::exists(file, error)) file = (fs::path(path) / kIndex).string();
    require(fs::exists(file, error), path, "has neither ", kModel, " nor ", kIndex);
  }
  impl->path = file;
  if (file.ends_with(".json")) {
    std::unordered_map<std::string, const Impl::Shard*> opened;
    for (const auto& [name, shard_name] : read_index(file)) {
      const Impl::Shard*& shard = opened[shard_name];
      if (!shard) shard = &impl->open((fs::path(file).parent_path() / shard_name).string());
      const auto found = shard->tensors.find(name);
      require(found != shard->tensors.end(), file, "says that tensor \"", detail::gguf_printable(name),
              "\" is in ", shard_name, ", which does not have it");
      impl->put(name, *shard, found->second);
    }
  } else {
    const Impl::Shard& shard = impl->open(file);
    for (const auto& [name, entry] : shard.tensors) impl->put(name, shard, entry);
  }
  std::sort(impl->entries.begin(), impl->entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  for (std::size_t i = 0; i < impl->entries.size(); ++i) impl->by_name.emplace(impl->entries[i].name, i);
  impl_ = std::move(impl);
}

const std::vector<SafetensorsShards::Entry>& SafetensorsShards::entries() const { return impl_->entries; }
std::size_t SafetensorsShards::shards() const { return impl_->shards.size(); }

const SafetensorsShards::Entry* SafetensorsShards::find(const std::string& name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->entries[found->second];
}

Tensor SafetensorsShards::read(const std::string& name) const {
  const auto found = impl_->places.find(name);
  require(found != impl_->places.end(), impl_->path, "has no tensor \"", detail::gguf_printable(name), "\"");
  const auto& [shard, entry] = found->second;
  if (entry->end == entry->begin) return empty(entry->sizes, {entry->dtype, kCPU});
  std::uint8_t* const data = shard->mapping->data() + shard->data_start + entry->begin;
  if (entry->dtype != DType::boolean &&
      reinterpret_cast<std::uintptr_t>(data) % dtype_size(entry->dtype) == 0)
    return detail::share_memory(data, entry->dtype, entry->sizes, shard->mapping);
  Tensor out = empty(entry->sizes, {entry->dtype, kCPU});
  std::memcpy(out.raw_data(), data, out.nbytes());
  if (entry->dtype == DType::boolean) {  // a bool whose byte is neither 0 nor 1 is undefined behavior
    auto* const bytes = static_cast<unsigned char*>(out.raw_data());
    for (std::int64_t i = 0; i < out.numel(); ++i) bytes[i] = bytes[i] != 0;
  }
  return out;
}

namespace {

std::uint64_t bytes_of(const TensorSource& source) {
  return static_cast<std::uint64_t>(checked_numel("save_safetensors_shards", source.sizes)) *
         dtype_size(source.dtype);
}

std::string five_digits(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

void write_shard(const std::string& path, const std::vector<const TensorSource*>& tensors) {
  std::vector<SafetensorsFile::Entry> entries;
  std::unordered_map<std::string_view, const TensorSource*> by_name;
  for (const TensorSource* source : tensors) {
    entries.push_back({source->name, source->dtype, source->sizes});
    by_name.emplace(source->name, source);
  }
  SafetensorsWriter writer(path, std::move(entries), {{"format", "pt"}});
  for (const SafetensorsFile::Entry& entry : writer.entries()) {
    const Tensor tensor = by_name.at(entry.name)->read();
    detail::check_defined("save_safetensors_shards", tensor, entry.name.c_str());
    check(tensor.dtype() == entry.dtype && tensor.sizes() == entry.sizes,
          "[save_safetensors_shards] the source of ", entry.name, " gave ", tensor.dtype(), " ",
          tensor.sizes(), " instead of ", entry.dtype, " ", entry.sizes);
    writer.write(tensor);
  }
  writer.commit();
}

}  // namespace

void save_safetensors_shards(const std::string& folder, const std::vector<TensorSource>& tensors,
                             const SaveShardsOptions& options) {
  check(options.max_shard_bytes > 0, "[save_safetensors_shards] max_shard_bytes is 0; it must be at least 1");
  std::unordered_set<std::string_view> names;
  std::vector<std::vector<const TensorSource*>> shards(1);
  std::uint64_t total = 0, in_shard = 0;
  for (const TensorSource& source : tensors) {
    check(names.insert(source.name).second, "[save_safetensors_shards] the name ", source.name,
          " occurs twice; rename one");
    const std::uint64_t bytes = bytes_of(source);
    if (!shards.back().empty() &&
        (in_shard > options.max_shard_bytes || bytes > options.max_shard_bytes - in_shard)) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(&source);
    in_shard += bytes;
    total += bytes;
  }
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, folder, "cannot be created: ", error.message());
  const auto at = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  require(!fs::exists(at(kIndex), error), folder, "has a model of several files; choose another folder");
  if (shards.size() == 1) return write_shard(at(kModel), shards[0]);
  require(!fs::exists(at(kModel), error), folder, "has ", kModel,
          ", which readers would take instead of the new model of several files; choose another folder");
  Json index;
  index["metadata"]["total_size"] = total;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        "model-" + five_digits(i + 1) + "-of-" + five_digits(shards.size()) + ".safetensors";
    write_shard(at(name), shards[i]);
    for (const TensorSource* source : shards[i]) index["weight_map"][source->name] = name;
  }
  write_file_atomically(at(kIndex), index.dump(2) + "\n");
}

}  // namespace tapestry
