#include "tapestry/data/formats/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace tapestry::data {

static_assert(std::endian::native == std::endian::little, "ids are read without conversion");

struct MappedFile::Mapping {
  void* data = nullptr;
  std::size_t size = 0;
  ~Mapping() {
    if (data) munmap(data, size);
  }
};

MappedFile::MappedFile(const char* op, const std::string& path) {
  // O_NONBLOCK: opening a FIFO would block until another process opens it for writing.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail<IoError>("[", op, "] ", path, ": cannot be opened: ", std::strerror(errno));
  struct Close {
    int file;
    ~Close() { close(file); }
  } const at_end{file};
  struct stat status {};
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  check<IoError>(regular, "[", op, "] ", path, ": is not a regular file");
  auto mapping = std::make_shared<Mapping>();
  if (status.st_size > 0) {
    void* const data =
        mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) fail<IoError>("[", op, "] ", path, ": cannot be mapped: ", std::strerror(errno));
    mapping->data = data;
    mapping->size = static_cast<std::size_t>(status.st_size);
  }
  mapping_ = std::move(mapping);
}

const char* MappedFile::data() const { return static_cast<const char*>(mapping_->data); }
std::size_t MappedFile::size() const { return mapping_->size; }

TextDataset::TextDataset(const std::string& path, Options options) : file_("TextDataset", path) {
  auto lines = std::make_shared<std::vector<std::string_view>>();
  std::string_view rest(file_.data(), file_.size());
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!options.skip_empty || !line.empty()) lines->push_back(line);
  }
  lines_ = std::move(lines);
}

std::string_view TextDataset::line(std::int64_t index) const {
  detail::check_index("TextDataset", index, size());
  return (*lines_)[static_cast<std::size_t>(index)];
}

namespace {

std::int64_t bytes_of(TokenType type) {
  constexpr std::int64_t kBytes[] = {1, 2, 4, 8};
  return kBytes[static_cast<int>(type)];
}

template <class T>
void copy_ids(const char* from, std::int64_t count, std::int64_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, from + i * static_cast<std::int64_t>(sizeof id), sizeof id);
    to[i] = id;
  }
}

}  // namespace

TokenDataset::TokenDataset(const std::string& path, Options options)
    : path_(path), file_("TokenDataset", path), options_(options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  check(options.length >= 1 && options.length <= kMost, "[TokenDataset] length is ", options.length,
        "; it must be at least 1");
  check(options.stride >= 0 && options.stride <= kMost, "[TokenDataset] stride is ", options.stride,
        "; it cannot be negative");
  check(options.vocab_size >= 0, "[TokenDataset] vocab_size is ", options.vocab_size,
        "; it cannot be negative");
  if (options_.stride == 0) options_.stride = options_.length;
  const std::int64_t bytes = static_cast<std::int64_t>(file_.size()), each = bytes_of(options.type);
  check<IoError>(bytes % each == 0, "[TokenDataset] ", path, ": has ", bytes,
                 " bytes, which is no multiple of ", each, "; is the type of its ids another one?");
  tokens_ = bytes / each;
  check<IoError>(tokens_ > options_.length, "[TokenDataset] ", path, ": has ", tokens_,
                 " ids, and a window of ", options_.length, " and its targets need ", options_.length + 1);
  size_ = (tokens_ - options_.length - 1) / options_.stride + 1;
}

void TokenDataset::copy_window(std::int64_t index, std::int64_t* input, std::int64_t* target) const {
  detail::check_index("TokenDataset", index, size_);
  const std::int64_t first = index * options_.stride, length = options_.length;
  const auto read = [&](std::int64_t at, std::int64_t count, std::int64_t* to) {
    const char* from = file_.data() + at * bytes_of(options_.type);
    switch (options_.type) {
      case TokenType::u8:
        return copy_ids<std::uint8_t>(from, count, to);
      case TokenType::u16:
        return copy_ids<std::uint16_t>(from, count, to);
      case TokenType::i32:
        return copy_ids<std::int32_t>(from, count, to);
      case TokenType::i64:
        return copy_ids<std::int64_t>(from, count, to);
    }
  };
  read(first, length, input);
  std::memcpy(target, input + 1, static_cast<std::size_t>(length - 1) * sizeof *input);
  read(first + length, 1, target + length - 1);
  if (options_.vocab_size == 0) return;
  for (std::int64_t i = 0; i <= length; ++i) {
    const std::int64_t id = i < length ? input[i] : target[length - 1];
    check(id >= 0 && id < options_.vocab_size, "[TokenDataset] ", path_, ": id ", id, " at position ",
          first + i, " is not in [0, ", options_.vocab_size, ")");
  }
}

Example TokenDataset::get(std::int64_t index) const {
  const Example out{empty({options_.length}, {DType::i64, kCPU}),
                    empty({options_.length}, {DType::i64, kCPU})};
  copy_window(index, out.input.data<std::int64_t>(), out.target.data<std::int64_t>());
  return out;
}

std::optional<Example> TokenDataset::get_batch(std::span<const std::int64_t> indices) const {
  const Shape sizes{static_cast<std::int64_t>(indices.size()), options_.length};
  Example out{empty(sizes, {DType::i64, kCPU}), empty(sizes, {DType::i64, kCPU})};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * options_.length;
    copy_window(indices[i], out.input.data<std::int64_t>() + at, out.target.data<std::int64_t>() + at);
  }
  return out;
}

}  // namespace tapestry::data
