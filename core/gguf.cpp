#include "tapestry/core/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tapestry/core/internal/file_mapping.h"
#include "tapestry/core/internal/gguf_format.h"

namespace tapestry {
namespace {

using detail::gguf_printable;
using detail::kGgufArray;
using detail::kGgufString;

static_assert(std::endian::native == std::endian::little, "numbers are read without conversion");

/// Bytes that have not been read yet. Every read checks that they exist.
class Cursor {
 public:
  Cursor(const GgufMetadata& errors, const std::uint8_t* data, std::uint64_t size)
      : errors_(errors), data_(data), size_(size) {}
  std::uint64_t position() const { return at_; }
  std::uint64_t left() const { return size_ - at_; }

  template <class T>
  T number(const char* what) {
    require(sizeof(T), what);
    T value;
    std::memcpy(&value, data_ + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string_view text(const char* what) {
    const auto length = number<std::uint64_t>(what);
    require(length, what);
    const std::string_view text(reinterpret_cast<const char*>(data_ + at_), static_cast<std::size_t>(length));
    at_ += length;
    return text;
  }
  /// Throws unless `count` things of at least `each` bytes can follow. Call it before allocating for them.
  void require_room(std::uint64_t count, std::uint64_t each, std::string_view what) const {
    if (count > left() / each)
      errors_.broken("claims ", count, " ", what, ", but only ", left(),
                     " bytes of the file are left; it is truncated or its header is wrong");
  }

 private:
  void require(std::uint64_t bytes, const char* what) const {
    if (bytes > left())
      errors_.broken("ends inside ", what, ", which needs ", bytes, " bytes at byte ", at_, " of ", size_,
                     "; it is truncated or its header is wrong");
  }
  const GgufMetadata& errors_;
  const std::uint8_t* data_;
  std::uint64_t size_, at_ = 0;
};

template <std::size_t I>
GgufArray read_elements(Cursor& in, std::uint64_t count) {
  using List = std::variant_alternative_t<I, GgufArray>;
  if constexpr (std::is_same_v<List, std::monostate>) {
    return {};
  } else {
    List list;
    using T = typename List::value_type;
    constexpr bool text = std::is_same_v<T, std::string>;
    in.require_room(count, text ? 8 : sizeof(T), "array elements");
    list.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) {
      if constexpr (text) list.emplace_back(in.text("a string of an array"));
      else if constexpr (std::is_same_v<T, bool>) list.push_back(in.number<std::uint8_t>("an array") != 0);
      else list.push_back(in.number<T>("an array"));
    }
    return list;
  }
}

template <std::size_t I>
GgufValue read_scalar(Cursor& in) {
  using T = std::variant_alternative_t<I, GgufValue>;
  if constexpr (std::is_same_v<T, std::string>) return std::string(in.text("a string"));
  else if constexpr (std::is_same_v<T, bool>) return in.number<std::uint8_t>("a boolean") != 0;
  else if constexpr (std::is_same_v<T, GgufArray>) return std::uint8_t{0};
  else return in.number<T>("a number");
}

/// Calls f(integral_constant<I>) for the alternative whose index is `number`.
template <class F, std::size_t... I>
auto with_index(std::uint32_t number, F&& f, std::index_sequence<I...>) {
  decltype(f(std::integral_constant<std::size_t, 0>{})) result{};
  ((number == I ? static_cast<void>(result = f(std::integral_constant<std::size_t, I>{})) : void()), ...);
  return result;
}
constexpr std::make_index_sequence<std::variant_size_v<GgufValue>> kAll{};

GgufValue read_value(Cursor& in, const GgufMetadata& errors, const std::string& key) {
  const auto type = in.number<std::uint32_t>("the type of a value");
  if (type >= std::variant_size_v<GgufValue>)
    errors.broken("metadata \"", gguf_printable(key), "\" has the type ", type, ", which does not exist");
  if (type != kGgufArray)
    return with_index(
        type, [&](auto i) { return read_scalar<i()>(in); }, kAll);
  const auto each = in.number<std::uint32_t>("the type of an array");
  if (each == kGgufArray)
    errors.broken("metadata \"", gguf_printable(key), "\" is an array of arrays, which is not supported");
  if (each >= std::variant_size_v<GgufValue>)
    errors.broken("metadata \"", gguf_printable(key), "\" is an array of the type ", each,
                  ", which does not exist");
  const auto count = in.number<std::uint64_t>("the length of an array");
  return with_index(
      each, [&](auto i) { return read_elements<i()>(in, count); }, kAll);
}

}  // namespace

std::string detail::gguf_printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 80 ? out + "..." : out;
}

// ---- metadata ----

GgufMetadata::GgufMetadata(std::string source) : source_(std::move(source)) {}
GgufMetadata::GgufMetadata(const GgufMetadata&) = default;
GgufMetadata::GgufMetadata(GgufMetadata&&) noexcept = default;
GgufMetadata& GgufMetadata::operator=(const GgufMetadata&) = default;
GgufMetadata& GgufMetadata::operator=(GgufMetadata&&) noexcept = default;
GgufMetadata::~GgufMetadata() = default;

void GgufMetadata::set(const std::string& key, GgufValue value) {
  const auto [found, added] = by_key_.try_emplace(key, entries_.size());
  if (added) entries_.emplace_back(key, std::move(value));
  else entries_[found->second].second = std::move(value);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = by_key_.find(std::string(key));
  return found == by_key_.end() ? nullptr : &entries_[found->second].second;
}

const GgufValue& GgufMetadata::at(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (!value) broken("has no metadata \"", key, "\"");
  return *value;
}

void GgufMetadata::wrong_kind(std::string_view key, const char* wanted) const {
  constexpr const char* kKinds[] = {"an integer", "an integer", "an integer", "an integer", "an integer",
                                    "an integer", "a number",   "a boolean",  "a string",   "an array",
                                    "an integer", "an integer", "a number"};
  broken("metadata \"", key, "\" is ", kKinds[at(key).index()], ", but ", wanted, " is expected");
}

namespace {

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

}  // namespace

std::int64_t GgufMetadata::integer(std::string_view key) const {
  return std::visit(
      [&](const auto& value) -> std::int64_t {
        using T = std::decay_t<decltype(value)>;
        if constexpr (is_integer<T>) {
          if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
          broken("metadata \"", key, "\" is ", value, ", which is too large");
        } else {
          wrong_kind(key, "an integer");
        }
      },
      at(key));
}

double GgufMetadata::number(std::string_view key) const {
  return std::visit(
      [&](const auto& value) -> double {
        using T = std::decay_t<decltype(value)>;
        if constexpr (is_integer<T> || std::is_floating_point_v<T>) return static_cast<double>(value);
        else wrong_kind(key, "a number");
      },
      at(key));
}

bool GgufMetadata::flag(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const bool* const value = std::get_if<bool>(&at(key));
  if (!value) wrong_kind(key, "a boolean");
  return *value;
}

const std::string& GgufMetadata::string(std::string_view key) const {
  const std::string* const value = std::get_if<std::string>(&at(key));
  if (!value) wrong_kind(key, "a string");
  return *value;
}

const std::vector<std::string>& GgufMetadata::strings(std::string_view key) const {
  const GgufArray* const array = std::get_if<GgufArray>(&at(key));
  const auto* const list = array ? std::get_if<std::vector<std::string>>(array) : nullptr;
  if (!list) wrong_kind(key, "an array of strings");
  return *list;
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufArray* const array = std::get_if<GgufArray>(&at(key));
  if (!array) wrong_kind(key, "an array of integers");
  return std::visit(
      [&](const auto& list) -> std::vector<std::int64_t> {
        using List = std::decay_t<decltype(list)>;
        if constexpr (!std::is_same_v<List, std::monostate>) {
          if constexpr (is_integer<typename List::value_type>) {
            std::vector<std::int64_t> out;
            out.reserve(list.size());
            for (const auto value : list) {
              if (!std::in_range<std::int64_t>(value))
                broken("metadata \"", key, "\" has the element ", value, ", which is too large");
              out.push_back(static_cast<std::int64_t>(value));
            }
            return out;
          }
        }
        wrong_kind(key, "an array of integers");
      },
      *array);
}

std::int64_t GgufMetadata::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}
double GgufMetadata::number(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
std::string GgufMetadata::string(std::string_view key, const std::string& fallback) const {
  return has(key) ? string(key) : fallback;
}

// ---- files ----

struct GgufFile::Impl {
  explicit Impl(const std::string& path) : metadata(path) {}
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::size_t> by_name;
  std::shared_ptr<detail::FileMapping> mapping;

  void read_version(Cursor& in);
  void read_metadata(Cursor& in, std::uint64_t count);
  void read_tensors(Cursor& in, std::uint64_t count);
};

void GgufFile::Impl::read_version(Cursor& in) {
  if (in.number<std::uint32_t>("the magic number") != detail::kGgufMagic)
    metadata.broken("does not begin with GGUF; it is not a GGUF file");
  version = in.number<std::uint32_t>("the version");
  if (version != 0 && (version & 0xffff) == 0)
    metadata.broken(
        "is big-endian, which is not supported; convert it with gguf-convert-endian of llama.cpp");
  if (version == 1)
    metadata.broken(
        "has version 1, which llama.cpp wrote until October 2023; versions 2 and 3 are supported");
  if (version != 2 && version != 3)
    metadata.broken("has version ", version, "; versions 2 and 3 are supported");
}

void GgufFile::Impl::read_metadata(Cursor& in, std::uint64_t count) {
  in.require_room(count, 8 + 4 + 1, "metadata");  // the length of a key, a type and a value
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string key(in.text("a key"));
    if (key.empty() || key.size() > detail::kGgufMaxName)
      metadata.broken("has a key of ", key.size(), " bytes; they have 1 to ", detail::kGgufMaxName);
    if (metadata.has(key)) metadata.broken("metadata \"", gguf_printable(key), "\" occurs twice");
    metadata.set(key, read_value(in, metadata, key));
  }
}

void GgufFile::Impl::read_tensors(Cursor& in, std::uint64_t count) {
  struct Info {
    std::string name;
    BlockType type;
    Shape sizes;
    std::uint64_t offset, bytes;
  };
  const std::int64_t alignment = metadata.integer("general.alignment", detail::kGgufAlignment);
  if (alignment < 1 || alignment > (1 << 30) || (alignment & (alignment - 1)) != 0)
    metadata.broken("has the alignment ", alignment, "; it must be a power of two up to 2^30");
  const auto align = static_cast<std::uint64_t>(alignment);
  in.require_room(count, 8 + 4 + 4 + 8, "tensors");  // the length of a name, dimensions, a type, an offset
  std::vector<Info> infos;
  infos.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    Info info;
    info.name = in.text("the name of a tensor");
    const std::string shown = gguf_printable(info.name);
    if (info.name.size() > detail::kGgufMaxName)
      metadata.broken("has a tensor whose name has ", info.name.size(), " bytes");
    if (!by_name.emplace(info.name, infos.size()).second)
      metadata.broken("tensor \"", shown, "\" occurs twice");
    const auto dims = in.number<std::uint32_t>("the dimensions of a tensor");
    if (dims > static_cast<std::uint32_t>(detail::kGgufMaxDims))
      metadata.broken("tensor \"", shown, "\" has ", dims, " dimensions; at most ", detail::kGgufMaxDims,
                      " are allowed");
    std::int64_t sizes[detail::kGgufMaxDims];
    for (std::uint32_t d = 0; d < dims; ++d) {
      const auto size = in.number<std::uint64_t>("the sizes of a tensor");
      if (!std::in_range<std::int64_t>(size)) metadata.broken("tensor \"", shown, "\" has a size of ", size);
      sizes[d] = static_cast<std::int64_t>(size);
    }
    for (std::uint32_t d = dims; d-- > 0;) info.sizes.push_back(sizes[d]);  // the file has the fastest first
    const auto type = in.number<std::uint32_t>("the type of a tensor");
    const auto known = block_type_of(type);
    if (!known)
      metadata.broken(
          "tensor \"", shown, "\" is of ", ggml_type_name(type),
          ", which is not supported; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are");
    info.type = *known;
    info.offset = in.number<std::uint64_t>("the offset of a tensor");
    const auto bytes = detail::packed_bytes(info.type, info.sizes);
    if (!bytes)
      metadata.broken("tensor \"", shown, "\" has the shape ", info.sizes,
                      ", but its rows must be whole blocks of ", block_layout(info.type).elements,
                      " elements, and its size must fit in 63 bits");
    info.bytes = *bytes;
    infos.push_back(std::move(info));
  }
  // A file without tensors may end before the padding.
  const std::uint64_t start = (in.position() + align - 1) / align * align, file = mapping->size();
  const std::uint64_t data = file > start ? file - start : 0;
  std::vector<const Info*> order;
  for (const Info& info : infos) {
    if (info.offset % align != 0)
      metadata.broken("tensor \"", gguf_printable(info.name), "\" begins at byte ", info.offset,
                      " of the data, which is no multiple of the alignment ", align);
    if (info.offset > data || info.bytes > data - info.offset)
      metadata.broken("tensor \"", gguf_printable(info.name), "\" has ", info.bytes, " bytes from byte ",
                      info.offset, " of the data, but there are ", data,
                      " bytes; the file is truncated or its header is wrong");
    if (info.bytes > 0) order.push_back(&info);
  }
  std::sort(order.begin(), order.end(), [](const Info* a, const Info* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i]->offset - order[i - 1]->offset < order[i - 1]->bytes)
      metadata.broken("tensors \"", gguf_printable(order[i - 1]->name), "\" and \"",
                      gguf_printable(order[i]->name), "\" overlap");
  for (Info& info : infos) {
    const std::uint8_t* const at = info.bytes > 0 ? mapping->data() + start + info.offset : nullptr;
    entries.push_back({info.name, PackedTensor(info.type, info.sizes, at, info.bytes, mapping)});
  }
}

GgufFile::GgufFile(const std::string& path) {
  auto impl = std::make_shared<Impl>(path);
  impl->mapping = detail::FileMapping::open("gguf", path);
  Cursor in(impl->metadata, impl->mapping->data(), impl->mapping->size());
  impl->read_version(in);
  const auto tensors = in.number<std::uint64_t>("the number of tensors");
  const auto keys = in.number<std::uint64_t>("the number of metadata");
  impl->read_metadata(in, keys);
  impl->read_tensors(in, tensors);
  impl_ = std::move(impl);
}

std::uint32_t GgufFile::version() const { return impl_->version; }
const GgufMetadata& GgufFile::metadata() const { return impl_->metadata; }
const std::vector<GgufFile::Entry>& GgufFile::entries() const { return impl_->entries; }
std::uint64_t GgufFile::bytes() const { return impl_->mapping->size(); }

const PackedTensor* GgufFile::find(const std::string& name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->entries[found->second].tensor;
}

const PackedTensor& GgufFile::packed(const std::string& name) const {
  const PackedTensor* const tensor = find(name);
  if (!tensor) impl_->metadata.broken("has no tensor \"", gguf_printable(name), "\"");
  return *tensor;
}

}  // namespace tapestry
