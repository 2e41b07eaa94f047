#include "tapestry/core/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
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
  std::uint64_t data_start = 0, size = 0;
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

  /// Reads elements to the CPU, beginning at a byte offset of the file.
  Tensor read_elements(std::uint64_t offset, const Shape& sizes, DType dtype) const {
    Tensor out = empty(sizes, {dtype, kCPU});
    read_at(offset, out.raw_data(), out.nbytes());
    if (dtype == DType::boolean) {  // in C++, a bool whose byte is neither 0 nor 1 is undefined behavior
      unsigned char* bytes = static_cast<unsigned char*>(out.raw_data());
      for (std::int64_t i = 0; i < out.numel(); ++i) bytes[i] = bytes[i] != 0;
    }
    return out;
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
  const std::uint64_t size = s.size = static_cast<std::uint64_t>(status.st_size);
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
  return impl_->read_elements(impl_->data_start + entry.begin, entry.sizes, entry.dtype);
}

Tensor SafetensorsFile::read_rows(const std::string& name, std::int64_t first, std::int64_t rows) const {
  const Entry* entry = find(name);
  if (!entry) impl_->broken("has no tensor \"", name, "\"");
  const std::int64_t all = entry->sizes.empty() ? 1 : entry->sizes[0];
  check<IndexError>(first >= 0 && rows >= 0 && first <= all && rows <= all - first, "[safetensors] ",
                    impl_->path, ": rows ", first, " to ", first, " + ", rows, " of tensor \"", name,
                    "\" were requested, but its shape is ", entry->sizes);
  if (entry->sizes.empty() && rows == 1) return read(*entry);
  Shape sizes = entry->sizes.empty() ? Shape{0} : entry->sizes;
  sizes[0] = rows;
  // The constructor has checked that the whole tensor lies in the file, so these products do not overflow.
  const std::uint64_t row = all == 0 ? 0 : (entry->end - entry->begin) / static_cast<std::uint64_t>(all);
  return impl_->read_elements(impl_->data_start + entry->begin + row * static_cast<std::uint64_t>(first),
                              sizes, entry->dtype);
}

std::uint64_t SafetensorsFile::bytes() const { return impl_->size; }

Safetensors load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  Safetensors out;
  out.metadata = file.metadata();
  for (const Entry& entry : file.entries()) out.tensors.emplace(entry.name, file.read(entry));
  return out;
}

namespace {

std::string json_text(const std::string& text) {
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

struct SafetensorsWriter::Impl {
  std::vector<Entry> entries;
  std::optional<AtomicFile> file;
  std::size_t at = 0;         // the entry that is being written
  std::uint64_t written = 0;  // bytes of its data

  /// Skips entries that are complete.
  void advance() {
    while (at < entries.size() && written == entries[at].end - entries[at].begin) {
      ++at;
      written = 0;
    }
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Entry> tensors,
                                     const StringMap& metadata)
    : impl_(std::make_unique<Impl>()) {
  std::unordered_set<std::string_view> names;
  for (const Entry& entry : tensors) {
    check(entry.name != kMetadata, "[save_safetensors] a tensor cannot be named ", kMetadata,
          ", which the format reserves for its metadata; rename it");
    check(names.insert(entry.name).second, "[save_safetensors] the name ", entry.name,
          " occurs twice; rename one");
  }
  std::sort(tensors.begin(), tensors.end(), [&](const Entry& a, const Entry& b) {
    const int rank_a = rank_of(a.dtype), rank_b = rank_of(b.dtype);
    return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += json_text(kMetadata) + ":{";
    for (const auto& [key, value] : metadata) header += json_text(key) + ":" + json_text(value) + ",";
    header.back() = '}';
    header += ',';
  }
  std::uint64_t at = 0;
  for (Entry& entry : tensors) {
    std::string shape;
    for (std::int64_t n : entry.sizes) {
      check(n >= 0, "[save_safetensors] ", entry.name, " has the shape ", entry.sizes,
            "; sizes cannot be negative");
      shape += (shape.empty() ? "" : ",") + std::to_string(n);
    }
    const std::optional<std::uint64_t> bytes = bytes_of(entry);
    check(bytes && *bytes <= static_cast<std::uint64_t>(INT64_MAX) - at, "[save_safetensors] ", entry.name,
          " of shape ", entry.sizes, " is too large; the data of a file is at most 2^63 - 1 bytes");
    entry.begin = at;
    entry.end = at += *bytes;
    header += json_text(entry.name) +
              concat({":{\"dtype\":\"", kDTypeNames[rank_of(entry.dtype)].name, "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", entry.begin, ",", entry.end, "]},"});
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  check(header.size() <= kMaxHeader, "[save_safetensors] the header with all names has ", header.size(),
        " bytes; the limit is ", kMaxHeader);
  impl_->entries = std::move(tensors);
  impl_->file.emplace(path);
  const std::uint64_t header_size = header.size();
  impl_->file->write(&header_size, 8);
  impl_->file->write(header);
  impl_->advance();
}

SafetensorsWriter::~SafetensorsWriter() = default;
const std::vector<Entry>& SafetensorsWriter::entries() const { return impl_->entries; }

void SafetensorsWriter::write(const Tensor& elements) {
  Impl& s = *impl_;
  detail::check_defined("save_safetensors", elements, "a tensor");
  check<DeviceError>(elements.device().is_cpu(), "[save_safetensors] a tensor is on ", elements.device(),
                     "; move it to the CPU");
  if (elements.numel() == 0) return;
  check(s.at < s.entries.size(), "[save_safetensors] a tensor of shape ", elements.sizes(),
        " is written after the last tensor of the file");
  const Entry& entry = s.entries[s.at];
  const std::uint64_t left = entry.end - entry.begin - s.written;
  check(elements.dtype() == entry.dtype && elements.nbytes() <= left, "[save_safetensors] ", elements.dtype(),
        " ", elements.sizes(), " is written to ", entry.name, " of ", entry.dtype, " ", entry.sizes,
        ", of which ", left, " bytes are left; write the tensors in the order of entries()");
  if (elements.is_contiguous()) s.file->write(elements.raw_data(), elements.nbytes());
  else
    write_elements(*s.file, static_cast<const char*>(elements.raw_data()), elements.sizes(),
                   elements.strides(), dtype_size(elements.dtype()), 0);
  s.written += elements.nbytes();
  s.advance();
}

void SafetensorsWriter::commit() {
  check(impl_->at == impl_->entries.size(), "[save_safetensors] ",
        impl_->at < impl_->entries.size() ? impl_->entries[impl_->at].name : "",
        " has not been written completely; write all tensors before commit()");
  impl_->file->commit();
}

void save_safetensors(const std::string& path, const NamedTensors& tensors, const StringMap& metadata) {
  std::vector<Entry> entries;
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    detail::check_defined("save_safetensors", tensor, name.c_str());
    check<DeviceError>(tensor.device().is_cpu(), "[save_safetensors] ", name, " is on ", tensor.device(),
                       "; move it to the CPU");
    entries.push_back({name, tensor.dtype(), tensor.sizes()});
    by_name.emplace(name, &tensor);
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const Entry& entry : writer.entries()) writer.write(*by_name.at(entry.name));
  writer.commit();
}

}  // namespace tapestry
