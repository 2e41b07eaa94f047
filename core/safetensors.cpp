#include "tapestry/core/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/core/atomic_file.h"

namespace tapestry {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and elements are read and written without conversion");

using Json = nlohmann::json;
using Entry = SafetensorsFile::Entry;

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

// The list has the dtype order of the reference implementation, which writes tensors from the last dtype of
// this list to the first. Wide elements then come first, so all elements are aligned.
struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr DTypeName kDTypeNames[] = {{DType::boolean, "BOOL"}, {DType::u8, "U8"},   {DType::i8, "I8"},
                                     {DType::i16, "I16"},      {DType::u16, "U16"}, {DType::f16, "F16"},
                                     {DType::bf16, "BF16"},    {DType::i32, "I32"}, {DType::f32, "F32"},
                                     {DType::f64, "F64"},      {DType::i64, "I64"}};

int rank_of(DType dtype) {
  int rank = 0;
  while (kDTypeNames[rank].dtype != dtype) ++rank;
  return rank;
}

/// A SAX parser of the header, which accepts only
///   {"name": {"dtype": "", "shape": [], "data_offsets": [begin, end]}} and {"__metadata__": {"": ""}}.
/// Unlike a DOM parser, it uses little memory for any input, and it finds duplicate keys.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  std::vector<Entry> entries;
  StringMap metadata;
  std::string error;

  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("a boolean"); }
  bool number_float(double, const std::string&) override { return wrong("a number that is not an integer"); }
  bool number_integer(std::int64_t) override { return wrong("a negative number"); }
  bool binary(Json::binary_t&) override { return wrong("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::shape) {
      if (entry_.sizes.size() == kMaxDims)
        return complain("has more than " + std::to_string(kMaxDims) + " dimensions, which is not supported");
      if (value > static_cast<std::uint64_t>(INT64_MAX))
        return complain("has a size of " + std::to_string(value));
      entry_.sizes.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (offsets_ == 2) return complain("has more than two data_offsets");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return wrong("a number");
  }

  bool string(std::string& value) override {
    if (state_ == State::metadata) {
      metadata[key_] = value;
      return true;
    }
    if (state_ != State::dtype) return wrong("a string");
    for (const DTypeName& known : kDTypeNames) {
      if (value != known.name) continue;
      entry_.dtype = known.dtype;
      state_ = State::tensor;
      return true;
    }
    return complain("is of dtype " + value +
                    ", which is not supported (BOOL, U8, F16, BF16, I32, F32, F64, I64 are)");
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) state_ = State::top;
    else if (state_ == State::entry) state_ = key_ == kMetadata ? State::metadata : State::tensor;
    else return wrong("an object");
    return true;
  }

  bool key(std::string& value) override {
    if (state_ == State::top) {
      if (!names_.insert(value).second) return complain_of("the name \"" + value + "\" occurs twice");
      key_ = value;
      entry_ = {};
      fields_ = offsets_ = 0;
      state_ = State::entry;
      return true;
    }
    if (state_ == State::metadata) {
      key_ = value;
      return metadata.count(value) == 0 || complain_of("the metadata key \"" + value + "\" occurs twice");
    }
    const int field = value == "dtype" ? 1 : value == "shape" ? 2 : value == "data_offsets" ? 4 : 0;
    if (field == 0) return complain("has an unknown field \"" + value + "\"");
    if (fields_ & field) return complain("has " + value + " twice");
    fields_ |= field;
    state_ = field == 1 ? State::dtype : field == 2 ? State::before_shape : State::before_offsets;
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) {
      if (fields_ != 7 || offsets_ != 2) return complain("lacks dtype, shape or two data_offsets");
      entry_.name = key_;
      entries.push_back(entry_);
      state_ = State::top;
    } else if (state_ == State::metadata) {
      state_ = State::top;
    } else if (state_ == State::top) {
      state_ = State::done;
    } else {
      return wrong("the end of an object");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::before_shape) state_ = State::shape;
    else if (state_ == State::before_offsets) state_ = State::offsets;
    else return wrong("a list");
    return true;
  }
  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // The text of `e` is not used, because it quotes bytes of the file, which may be binary.
    return complain_of("it is not valid JSON at byte " + std::to_string(position) + " (error " +
                       std::to_string(e.id) + ")");
  }

 private:
  enum class State {
    start,
    top,
    entry,
    metadata,
    tensor,
    dtype,
    before_shape,
    shape,
    before_offsets,
    offsets,
    done
  };

  bool complain_of(std::string what) {
    if (error.empty()) error = std::move(what);
    return false;
  }
  bool complain(const std::string& what) { return complain_of("tensor \"" + key_ + "\" " + what); }
  bool wrong(const char* what) {
    if (state_ == State::start) return complain_of("it is not an object");
    if (state_ == State::metadata) return complain_of("metadata \"" + key_ + "\" is not a string");
    return complain(std::string("has ") + what + " where the format does not allow it");
  }

  State state_ = State::start;
  std::string key_;
  Entry entry_{};
  int fields_ = 0, offsets_ = 0;
  std::unordered_set<std::string> names_;
};

/// The size of a tensor in bytes, or nullopt if it does not fit in 63 bits.
std::optional<std::uint64_t> bytes_of(const Entry& entry) {
  std::uint64_t bytes = dtype_size(entry.dtype), bound = bytes;
  for (std::int64_t n : entry.sizes) {
    const std::uint64_t size = static_cast<std::uint64_t>(n), factor = std::max<std::uint64_t>(size, 1);
    if (bound > static_cast<std::uint64_t>(INT64_MAX) / factor) return std::nullopt;
    bound *= factor;
    bytes *= size;
  }
  return bytes;
}

}  // namespace

struct SafetensorsFile::Impl {
  std::string path;
  int fd = -1;
  std::uint64_t data_start = 0;
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::size_t> by_name;
  StringMap metadata;

  ~Impl() {
    if (fd >= 0) ::close(fd);
  }

  template <class... Parts>
  [[noreturn]] void broken(const Parts&... parts) const {
    fail<IoError>("[safetensors] ", path, ": ", parts...);
  }

  void read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const {
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = ::pread(fd, to, static_cast<std::size_t>(std::min<std::uint64_t>(bytes, 1u << 30)),
                                  static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) broken("cannot be read: ", std::strerror(errno));
      if (got == 0) broken("ends too early; it was truncated while it was read");
      to += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
  }

  /// Sorts the entries by offset. Throws unless the offsets match the shapes, and the tensors cover all
  /// `data` bytes without gaps and overlaps.
  void check_layout(std::uint64_t data) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t at = 0;
    for (const Entry& entry : entries) {
      const std::optional<std::uint64_t> bytes = bytes_of(entry);
      if (!bytes)
        broken("tensor \"", entry.name, "\" has the shape ", entry.sizes,
               ", whose size in bytes does not fit in 63 bits");
      if (entry.end < entry.begin || entry.end > data)
        broken("the data_offsets of tensor \"", entry.name, "\" are ", entry.begin, " to ", entry.end,
               ", but there are ", data, " bytes of data; the file is truncated or its header is wrong");
      if (entry.end - entry.begin != *bytes)
        broken("tensor \"", entry.name, "\" of ", entry.dtype, " ", entry.sizes, " has ", *bytes,
               " bytes, but its data_offsets span ", entry.end - entry.begin);
      if (entry.begin != at)
        broken("tensor \"", entry.name, "\" begins at byte ", entry.begin,
               " of the data, but the previous tensor ends at ", at, "; gaps and overlaps are not allowed");
      at = entry.end;
    }
    if (at != data) broken("has ", data - at, " bytes after the last tensor; its header is wrong");
  }
};

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  s.path = path;
  s.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // open() must not wait for a pipe's writer
  if (s.fd < 0) s.broken("cannot be opened: ", std::strerror(errno));
  struct stat status;
  if (::fstat(s.fd, &status) != 0) s.broken("cannot be read: ", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) s.broken("is not a file");
  const std::uint64_t size = static_cast<std::uint64_t>(status.st_size);
  if (size < 8) s.broken("has ", size, " bytes; a safetensors file has at least 8");
  std::uint64_t header_size = 0;
  s.read_at(0, &header_size, 8);
  if (header_size > kMaxHeader)
    s.broken("claims a header of ", header_size, " bytes; the limit is ", kMaxHeader);
  if (header_size > size - 8)
    s.broken("claims a header of ", header_size, " bytes, but the file has only ", size,
             " bytes; it is truncated");
  std::string header(static_cast<std::size_t>(header_size), '\0');
  s.read_at(8, header.data(), header_size);
  s.data_start = 8 + header_size;
  if (header.empty() || header[0] != '{')
    s.broken("the header does not begin with {; it is not a safetensors file");
  HeaderReader reader;
  if (!Json::sax_parse(header, &reader)) s.broken("the header is wrong: ", reader.error);
  s.entries = std::move(reader.entries);
  s.metadata = std::move(reader.metadata);
  s.check_layout(size - s.data_start);
  for (std::size_t i = 0; i < s.entries.size(); ++i) s.by_name.emplace(s.entries[i].name, i);
}

SafetensorsFile::~SafetensorsFile() = default;
const std::vector<Entry>& SafetensorsFile::entries() const { return impl_->entries; }
const StringMap& SafetensorsFile::metadata() const { return impl_->metadata; }

const Entry* SafetensorsFile::find(const std::string& name) const {
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : &impl_->entries[it->second];
}

Tensor SafetensorsFile::read(const std::string& name) const {
  const Entry* entry = find(name);
  if (!entry) impl_->broken("has no tensor \"", name, "\"");
  return read(*entry);
}

Tensor SafetensorsFile::read(const Entry& entry) const {
  Tensor out = empty(entry.sizes, {entry.dtype, kCPU});
  impl_->read_at(impl_->data_start + entry.begin, out.raw_data(), entry.end - entry.begin);
  if (entry.dtype == DType::boolean) {  // in C++, a bool whose byte is neither 0 nor 1 is undefined behavior
    unsigned char* bytes = static_cast<unsigned char*>(out.raw_data());
    for (std::int64_t i = 0; i < out.numel(); ++i) bytes[i] = bytes[i] != 0;
  }
  return out;
}

Safetensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  Safetensors out;
  out.metadata = file.metadata();
  for (const Entry& entry : file.entries()) out.tensors.emplace(entry.name, file.read(entry));
  return out;
}

namespace {

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail("[save_safetensors] the name or metadata \"", text,
         "\" is not UTF-8; the format allows no other encoding");
  }
}

/// Writes the elements in row-major order. If the last dimension is contiguous, each row is one call of
/// AtomicFile::write().
void write_elements(AtomicFile& file, const char* data, const Shape& sizes, const Shape& strides,
                    std::size_t item, int dim) {
  if (dim == sizes.size()) return file.write(data, item);
  if (dim == sizes.size() - 1 && strides[dim] == 1)
    return file.write(data, static_cast<std::size_t>(sizes[dim]) * item);
  for (std::int64_t i = 0; i < sizes[dim]; ++i)
    write_elements(file, data + i * strides[dim] * static_cast<std::int64_t>(item), sizes, strides, item,
                   dim + 1);
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors, const StringMap& metadata) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    detail::check_defined("save_safetensors", tensor, name.c_str());
    check<DeviceError>(tensor.device().is_cpu(), "[save_safetensors] ", name, " is on ", tensor.device(),
                       "; move it to the CPU");
    check(name != kMetadata, "[save_safetensors] a tensor cannot be named ", kMetadata,
          ", which the format reserves for its metadata; rename it");
    check(names.insert(name).second, "[save_safetensors] the name ", name, " occurs twice; rename one");
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int rank_a = rank_of(tensors[a].second.dtype()), rank_b = rank_of(tensors[b].second.dtype());
    return rank_a != rank_b ? rank_a > rank_b : tensors[a].first < tensors[b].first;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += quoted(kMetadata) + ":{";
    for (const auto& [key, value] : metadata) header += quoted(key) + ":" + quoted(value) + ",";
    header.back() = '}';
    header += ',';
  }
  std::uint64_t at = 0;
  for (std::size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    std::string shape;
    for (std::int64_t n : tensor.sizes()) shape += (shape.empty() ? "" : ",") + std::to_string(n);
    const std::uint64_t end = at + tensor.nbytes();
    header += quoted(name) + concat({":{\"dtype\":\"", kDTypeNames[rank_of(tensor.dtype())].name,
                                     "\",\"shape\":[", shape, "],\"data_offsets\":[", at, ",", end, "]},"});
    at = end;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  check(header.size() <= kMaxHeader, "[save_safetensors] the header with all names has ", header.size(),
        " bytes; the limit is ", kMaxHeader);

  AtomicFile file(path);
  const std::uint64_t header_size = header.size();
  file.write(&header_size, 8);
  file.write(header);
  for (std::size_t i : order) {
    const Tensor& tensor = tensors[i].second;
    if (tensor.numel() == 0) continue;
    if (tensor.is_contiguous()) file.write(tensor.raw_data(), tensor.nbytes());
    else
      write_elements(file, static_cast<const char*>(tensor.raw_data()), tensor.sizes(), tensor.strides(),
                     dtype_size(tensor.dtype()), 0);
  }
  file.commit();
}

}  // namespace tapestry
