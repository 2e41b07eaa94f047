#include <algorithm>
#include <optional>
#include <type_traits>
#include <unordered_set>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/gguf.h"
#include "tapestry/core/internal/gguf_format.h"

namespace tapestry {
namespace {

using detail::gguf_printable;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  out.append(text);
}

void put_value(std::string& out, const GgufValue& value) {
  put(out, static_cast<std::uint32_t>(value.index()));
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          put_text(out, v);
        } else if constexpr (std::is_same_v<T, bool>) {
          put(out, static_cast<std::uint8_t>(v));
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          put(out, static_cast<std::uint32_t>(v.index()));
          std::visit(
              [&](const auto& list) {
                using List = std::decay_t<decltype(list)>;
                if constexpr (!std::is_same_v<List, std::monostate>) {
                  put(out, static_cast<std::uint64_t>(list.size()));
                  for (const auto& element : list) {
                    if constexpr (std::is_same_v<List, std::vector<std::string>>) put_text(out, element);
                    else if constexpr (std::is_same_v<List, std::vector<bool>>)
                      put(out, static_cast<std::uint8_t>(element));
                    else put(out, element);
                  }
                }
              },
              v);
        } else {
          put(out, v);
        }
      },
      value);
}

}  // namespace

struct GgufWriter::Impl {
  std::vector<Entry> entries;
  std::uint64_t alignment = detail::kGgufAlignment;
  std::optional<AtomicFile> file;
  std::size_t at = 0;  // the tensor that comes next

  void pad(std::uint64_t written) {
    const std::uint64_t rest = (alignment - written % alignment) % alignment;
    file->write(std::string(static_cast<std::size_t>(rest), '\0'));
  }
};

GgufWriter::GgufWriter(const std::string& path, std::vector<Entry> tensors, const GgufMetadata& metadata)
    : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  if (metadata.has("general.alignment")) {
    const std::int64_t alignment = metadata.integer("general.alignment");
    check(alignment >= 1 && alignment <= (1 << 30) && (alignment & (alignment - 1)) == 0,
          "[GgufWriter] general.alignment is ", alignment, "; it must be a power of two up to 2^30");
    s.alignment = static_cast<std::uint64_t>(alignment);
  }
  std::string header;
  put(header, detail::kGgufMagic);
  put(header, static_cast<std::uint32_t>(3));
  put(header, static_cast<std::uint64_t>(tensors.size()));
  put(header, static_cast<std::uint64_t>(metadata.entries().size()));
  for (const auto& [key, value] : metadata.entries()) {
    check(!key.empty() && key.size() <= detail::kGgufMaxName, "[GgufWriter] a key of the metadata has ",
          key.size(), " bytes; it must have 1 to ", detail::kGgufMaxName);
    const GgufArray* const array = std::get_if<GgufArray>(&value);
    check(!array || !std::holds_alternative<std::monostate>(*array), "[GgufWriter] metadata \"",
          gguf_printable(key), "\" is an array without a type");
    put_text(header, key);
    put_value(header, value);
  }
  std::unordered_set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const Entry& entry : tensors) {
    const std::string shown = gguf_printable(entry.name);
    check(names.insert(entry.name).second, "[GgufWriter] the name ", shown, " occurs twice; rename one");
    check(entry.name.size() <= detail::kGgufMaxName, "[GgufWriter] the name ", shown, " has ",
          entry.name.size(), " bytes; at most ", detail::kGgufMaxName, " are allowed");
    check(!entry.sizes.empty() && entry.sizes.size() <= detail::kGgufMaxDims, "[GgufWriter] ", shown,
          " has the shape ", entry.sizes, "; GGUF has tensors of 1 to ", detail::kGgufMaxDims, " dimensions");
    const auto bytes = detail::packed_bytes(entry.type, entry.sizes);
    check(bytes && *bytes <= static_cast<std::uint64_t>(INT64_MAX) / 2 - offset, "[GgufWriter] ", shown,
          " of shape ", entry.sizes, " cannot be of ", block_layout(entry.type).name,
          ", whose rows are whole blocks of ", block_layout(entry.type).elements,
          " elements, or it is too large");
    put_text(header, entry.name);
    put(header, static_cast<std::uint32_t>(entry.sizes.size()));
    for (int d = entry.sizes.size(); d-- > 0;) put(header, static_cast<std::uint64_t>(entry.sizes[d]));
    put(header, static_cast<std::uint32_t>(entry.type));
    put(header, offset);
    offset += (*bytes + s.alignment - 1) / s.alignment * s.alignment;
  }
  s.entries = std::move(tensors);
  s.file.emplace(path);
  s.file->write(header);
  s.pad(header.size());
}

GgufWriter::~GgufWriter() = default;
const std::vector<GgufWriter::Entry>& GgufWriter::entries() const { return impl_->entries; }

void GgufWriter::write(const Tensor& tensor) {
  detail::check_defined("GgufWriter::write", tensor, "a tensor");
  check(impl_->at < impl_->entries.size(), "[GgufWriter::write] a tensor of shape ", tensor.sizes(),
        " is written after the last tensor of the file");
  write(PackedTensor::pack(tensor, impl_->entries[impl_->at].type));
}

void GgufWriter::write(const PackedTensor& tensor) {
  Impl& s = *impl_;
  check(s.at < s.entries.size(), "[GgufWriter::write] a tensor of shape ", tensor.sizes(),
        " is written after the last tensor of the file");
  const Entry& entry = s.entries[s.at];
  check(tensor.type() == entry.type && tensor.sizes() == entry.sizes, "[GgufWriter::write] ",
        block_layout(tensor.type()).name, " ", tensor.sizes(), " is written to ", gguf_printable(entry.name),
        " of ", block_layout(entry.type).name, " ", entry.sizes,
        "; write the tensors in the order of entries()");
  if (tensor.bytes() > 0) s.file->write(tensor.data(), static_cast<std::size_t>(tensor.bytes()));
  s.pad(tensor.bytes());
  ++s.at;
}

void GgufWriter::commit() {
  check(impl_->at == impl_->entries.size(), "[GgufWriter::commit] ",
        impl_->at < impl_->entries.size() ? gguf_printable(impl_->entries[impl_->at].name) : "",
        " has not been written; write all tensors before commit()");
  impl_->file->commit();
}

}  // namespace tapestry
