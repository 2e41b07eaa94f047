#include "tapestry/distributed/checkpoint/internal/index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tapestry/distributed/checkpoint/internal/boxes.h"

namespace tapestry::distributed::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 28;
constexpr int kMaxShards = 99'999;  // file names have five digits
constexpr int kMaxDepth = 6;
constexpr const char* kFormat = "tapestry.sharded_checkpoint";
constexpr std::int64_t kVersion = 2;  // in version 1, pieces are rows
// The last member of the index: the checksum of all bytes in front of this text.
constexpr std::string_view kOwnSum = ",\n \"crc32\": ";

/// Reads fields of the index. Every error names the file and the field.
struct Reader {
  const std::string& path;

  template <class... Parts>
  [[noreturn]] void broken(const Parts&... parts) const {
    fail<IoError>("[load_sharded] ", path, ": ", parts..., "; use another checkpoint");
  }
  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    if (!ok) broken(parts...);
  }

  const Json& field(const Json& object, const char* key) const {
    const auto it = object.find(key);
    require(it != object.end(), "lacks \"", key, "\"");
    return *it;
  }
  /// Returns an integer from `low` to `high`.
  std::int64_t integer(const Json& value, const std::string& what, std::int64_t low = 0,
                       std::int64_t high = INT64_MAX) const {
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                          : value.is_number_integer();
    require(fits, what, " is not an integer of 63 bits");
    const std::int64_t number = value.get<std::int64_t>();
    require(number >= low && number <= high, what, " is ", number, ", not from ", low, " to ", high);
    return number;
  }
  std::string text(const Json& value, const std::string& what) const {
    require(value.is_string(), what, " is not a text");
    return value.get<std::string>();
  }
  const Json& array(const Json& value, const std::string& what) const {
    require(value.is_array(), what, " is not a list");
    return value;
  }
  const Json& object(const Json& value, const std::string& what) const {
    require(value.is_object(), what, " is not an object");
    return value;
  }

  DType dtype(const Json& value, const std::string& what) const {
    const std::string name = text(value, what);
    for (int i = 0; i < kNumDTypes; ++i)
      if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
    broken(what, " is \"", name, "\", which is no dtype");
  }

  void add_blocks(TensorRecord& record, const Json& value, const std::string& what) const {
    record.block_rows = integer(field(value, "block_rows"), "\"block_rows\" of " + what, 1);
    const Json& lists = array(value["blocks"], "\"blocks\" of " + what);
    require(lists.size() == record.pieces.size(), what, " has ", record.pieces.size(),
            " pieces, but checksums of the blocks of ", lists.size());
    for (std::size_t i = 0; i < lists.size(); ++i) {
      Piece& piece = record.pieces[i];
      const Json& sums = array(lists[i], "the blocks of a piece of " + what);
      require(sums.size() == record.num_blocks(piece), what, " has a piece of ", piece.box.sizes[0],
              " rows with ", sums.size(), " checksums of blocks of ", record.block_rows, " rows");
      for (const Json& sum : sums)
        piece.blocks.push_back(
            static_cast<std::uint32_t>(integer(sum, "the checksum of a block of " + what, 0, UINT32_MAX)));
    }
  }

  /// Returns one number for each dimension of a box.
  Shape numbers(const Json& value, const std::string& what, int dims, std::int64_t low) const {
    require(value.is_array() && value.size() == static_cast<std::size_t>(dims), what, " is not a list of ",
            dims, " integers");
    Shape numbers;
    for (const Json& n : value) numbers.push_back(integer(n, what, low));
    return numbers;
  }

  TensorRecord tensor(const std::string& name, const Json& value, int shards, std::int64_t version) const {
    const std::string what = "tensor \"" + name + "\"";
    object(value, what);
    TensorRecord record;
    record.dtype = dtype(field(value, "dtype"), "the dtype of " + what);
    const Json& shape = array(field(value, "shape"), "the shape of " + what);
    require(shape.size() <= kMaxDims, what, " has ", shape.size(), " dimensions; at most ", kMaxDims,
            " are supported");
    // The bound counts sizes of 0 as 1, so that the size of a row does not overflow either.
    std::int64_t bound = static_cast<std::int64_t>(dtype_size(record.dtype));
    for (const Json& size : shape) {
      const std::int64_t n = integer(size, "a size of " + what);
      require(bound <= INT64_MAX / std::max<std::int64_t>(n, 1), what,
              " is too large: its size in bytes does not fit in 63 bits");
      bound *= std::max<std::int64_t>(n, 1);
      record.sizes.push_back(n);
    }
    const nn::Region whole = record.whole();
    std::vector<nn::Region> boxes;
    for (const Json& entry : array(field(value, "pieces"), "the pieces of " + what)) {
      require(entry.is_array() && entry.size() == 4, "a piece of ", what, " is not a list of shard, first ",
              version == 1 ? "row, rows" : "elements, sizes", " and checksum");
      Piece piece;
      piece.shard = static_cast<int>(integer(entry[0], "the shard of a piece of " + what, 0, shards - 1));
      if (version == 1) {
        piece.box = whole;
        piece.box.first[0] = integer(entry[1], "the first row of a piece of " + what);
        piece.box.sizes[0] = integer(entry[2], "the number of rows of a piece of " + what, 1);
      } else {
        const int dims = whole.sizes.size();
        piece.box.first = numbers(entry[1], "the first element of a piece of " + what, dims, 0);
        piece.box.sizes = numbers(entry[2], "the size of a piece of " + what, dims, 1);
      }
      piece.crc32 =
          static_cast<std::uint32_t>(integer(entry[3], "the checksum of a piece of " + what, 0, UINT32_MAX));
      boxes.push_back(piece.box);
      record.pieces.push_back(std::move(piece));
    }
    const std::string fault = why_not_divided(whole, boxes);
    require(fault.empty(), what, " has the shape ", record.sizes, ", and ", fault,
            "; each element must be in one piece");
    if (value.contains("blocks")) add_blocks(record, value, what);
    return record;
  }
};

std::uint32_t crc32_of(std::string_view text) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

Json list_of(const Shape& numbers) {
  Json list = Json::array();
  for (const std::int64_t n : numbers) list.push_back(n);
  return list;
}

/// Parses JSON that is nested at most kMaxDepth deep.
Json parse_json(const Reader& reader, const std::string& text) {
  bool deep = false;
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) {
        deep = true;
        throw std::length_error("nested too deep");
      }
      return true;
    });
  } catch (const std::exception& e) {
    reader.broken(deep ? "is nested too deep" : std::string("is not valid JSON"));
  }
  return json;
}

}  // namespace

std::uint64_t TensorRecord::bytes(const nn::Region& box) const {
  return static_cast<std::uint64_t>(box.sizes[0]) * row_bytes(box);
}

std::uint64_t TensorRecord::row_bytes(const nn::Region& box) const {
  std::uint64_t bytes = dtype_size(dtype);
  for (int d = 1; d < box.sizes.size(); ++d) bytes *= static_cast<std::uint64_t>(box.sizes[d]);
  return bytes;
}

std::size_t TensorRecord::num_blocks(const Piece& piece) const {
  const std::int64_t rows = piece.box.sizes[0];
  if (block_rows == 0 || rows <= block_rows || row_bytes(piece.box) == 0) return 0;
  return static_cast<std::size_t>((rows - 1) / block_rows + 1);
}

std::string Index::text() const {
  Json head{{"format", kFormat}, {"version", kVersion}, {"id", id}, {"generators", generators}};
  if (progress) {
    head["epoch"] = progress->epoch;
    head["step"] = progress->step;
    if (progress->metric) head["metric"] = concat({*progress->metric});
    head["extra"] = progress->extra;
  }
  if (!optimizer.empty()) {
    head["optimizer"] = optimizer;
    head["groups"] = groups;
  }
  head["scheduler"] = scheduler;
  head["aliases"] = aliases;
  if (!choices.empty()) head["choices"] = choices;
  for (const ShardRecord& shard : shards)
    head["shards"].push_back(Json{{"file", shard.file}, {"bytes", shard.bytes}});
  try {
    std::string out = head.dump(1);
    out.resize(out.rfind('}'));
    while (out.back() == '\n') out.pop_back();
    out += ",\n \"tensors\": {";
    bool first = true;
    for (const auto& [name, tensor] : tensors) {
      Json pieces = Json::array(), blocks = Json::array();
      const Json shape = list_of(tensor.sizes);
      bool several = false;
      for (const Piece& p : tensor.pieces) {
        pieces.push_back(Json{p.shard, list_of(p.box.first), list_of(p.box.sizes), p.crc32});
        blocks.push_back(Json(p.blocks));
        several = several || !p.blocks.empty();
      }
      out += std::string(first ? "" : ",") + "\n  " + Json(name).dump() + ": {\"dtype\": \"" +
             dtype_name(tensor.dtype) + "\", \"shape\": " + shape.dump() + ", \"pieces\": " + pieces.dump();
      if (several)
        out += ", \"block_rows\": " + std::to_string(tensor.block_rows) + ", \"blocks\": " + blocks.dump();
      out += '}';
      first = false;
    }
    out += "\n }";
    return out + std::string(kOwnSum) + std::to_string(crc32_of(out)) + "\n}\n";
  } catch (const Json::exception&) {
    fail(
        "[save_sharded] the name of a tensor, or a text of the progress, is not UTF-8; JSON allows no other "
        "encoding");
  }
}

Index Index::parse(const std::string& path, const std::string& text) {
  const Reader r{path};
  const Json json = parse_json(r, text);
  r.object(json, "the index");
  Index index;
  const std::string format = r.text(r.field(json, "format"), "\"format\"");
  r.require(format == kFormat, "has the format \"", format, "\", not \"", kFormat, "\"");
  const std::int64_t version = r.integer(r.field(json, "version"), "\"version\"");
  r.require(version >= 1, "has format version ", version, ", and versions begin with 1");
  if (json.contains("crc32")) {
    const std::int64_t expected = r.integer(json["crc32"], "\"crc32\""),
                       sum = crc32_of(std::string_view(text).substr(0, text.rfind(kOwnSum)));
    r.require(sum == expected, "is not what was written (checksum ", sum, ", not ", expected, ")");
  }
  // Not damage: a job that resumed from the checkpoint before it would lose steps without need.
  check(version <= kVersion, "[load_sharded] ", path, ": has format version ", version,
        ", but this library reads versions 1 to ", kVersion, "; resume with the version that wrote it");
  index.id = r.text(r.field(json, "id"), "\"id\"");

  const Json& shards = r.array(r.field(json, "shards"), "\"shards\"");
  r.require(!shards.empty() && shards.size() <= kMaxShards, "has ", shards.size(), " shards, not 1 to ",
            kMaxShards);
  const int count = static_cast<int>(shards.size());
  for (int i = 0; i < count; ++i) {
    const Json& shard = r.object(shards[static_cast<std::size_t>(i)], "a shard");
    ShardRecord record;
    record.file = r.text(r.field(shard, "file"), "the file of a shard");
    // The name must be one that this library gives. So it leads to no other folder.
    const std::string own = shard_file(i, count, 0), stem = own.substr(0, own.find('.'));
    r.require(is_shard_file(record.file) && record.file.starts_with(stem + "."), "names the file \"",
              record.file, "\" as shard ", i, " of ", count, ", where only names such as ", own,
              " are allowed");
    record.bytes = static_cast<std::uint64_t>(r.integer(r.field(shard, "bytes"), "\"bytes\" of a shard", 8));
    index.shards.push_back(std::move(record));
  }
  for (const auto& [name, value] : r.object(r.field(json, "tensors"), "\"tensors\"").items())
    index.tensors.emplace(name, r.tensor(name, value, count, version));
  if (json.contains("aliases")) {
    for (const auto& [name, value] : r.object(json["aliases"], "\"aliases\"").items()) {
      const std::string target = r.text(value, "an alias");
      r.require(index.tensors.contains(target) && !index.tensors.contains(name), "says that \"", name,
                "\" is tied to \"", target, "\", but has no such pair of names");
      index.aliases.emplace(name, target);
    }
  }
  if (json.contains("step")) {
    nn::Progress& progress = index.progress.emplace();
    progress.step = r.integer(json["step"], "\"step\"");
    progress.epoch = r.integer(r.field(json, "epoch"), "\"epoch\"");
    if (json.contains("metric")) {
      const std::string number = r.text(json["metric"], "\"metric\"");
      double metric = 0;
      const char* const end = number.data() + number.size();
      const auto [stop, error] = std::from_chars(number.data(), end, metric);
      r.require(error == std::errc() && stop == end, "\"", number, "\" as \"metric\" is not a number");
      progress.metric = metric;
    }
    for (const auto& [key, value] : r.object(r.field(json, "extra"), "\"extra\"").items())
      progress.extra[key] = r.text(value, "a value of \"extra\"");
  }
  if (json.contains("optimizer")) {
    index.optimizer = r.text(json["optimizer"], "\"optimizer\"");
    std::set<std::string> seen;
    for (const Json& group : r.array(r.field(json, "groups"), "\"groups\"")) {
      std::vector<std::string>& names = index.groups.emplace_back();
      for (const Json& value : r.array(group, "a group")) {
        names.push_back(r.text(value, "the name of a parameter in \"groups\""));
        r.require(seen.insert(names.back()).second, "has the parameter \"", names.back(),
                  "\" in \"groups\" twice");
      }
    }
  }
  if (json.contains("scheduler")) {
    r.require(json["scheduler"].is_boolean(), "\"scheduler\" is not true or false");
    index.scheduler = json["scheduler"].get<bool>();
  }
  if (json.contains("choices"))
    for (const auto& [name, value] : r.object(json["choices"], "\"choices\"").items())
      index.choices[name] = r.text(value, "a value of \"choices\"");
  for (const Json& state : r.array(r.field(json, "generators"), "\"generators\""))
    index.generators.push_back(r.text(state, "a state in \"generators\""));
  return index;
}

Index Index::read(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kIndexFile).string();
  const Reader r{path};
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) r.broken("does not exist, so the checkpoint is incomplete");
  if (fd < 0) r.broken("cannot be opened: ", std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } const closer{fd};
  struct stat status;
  r.require(::fstat(fd, &status) == 0 && S_ISREG(status.st_mode), "is not a file");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  r.require(bytes <= kMaxIndex, "has ", bytes, " bytes; the limit is ", kMaxIndex);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(fd, text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) r.broken("cannot be read: ", std::strerror(errno));
    r.require(got > 0, "cannot be read: it was truncated");
    at += static_cast<std::size_t>(got);
  }
  return parse(path, text);
}

std::string shard_file(int shard, int shards, int generation) {
  char name[96];
  const std::string suffix = generation == 0 ? "" : "." + std::to_string(generation);
  std::snprintf(name, sizeof name, "shard-%05d-of-%05d%s.safetensors", shard, shards, suffix.c_str());
  return name;
}

bool is_shard_file(const std::string& name) {
  int shard = 0, shards = 0, generation = 0, read = 0;
  if (std::sscanf(name.c_str(), "shard-%5d-of-%5d%n", &shard, &shards, &read) != 2) return false;
  const char* rest = name.c_str() + read;
  if (*rest == '.' && rest[1] >= '1' && rest[1] <= '9') {
    const auto [stop, error] = std::from_chars(rest + 1, name.c_str() + name.size(), generation);
    if (error != std::errc()) return false;
  }
  return shard >= 0 && shards >= 0 && name == shard_file(shard, shards, generation);
}

StringMap shard_metadata(const std::string& id, int shard, int shards) {
  return {{"format", "pt"},
          {"tapestry.checkpoint.id", id},
          {"tapestry.shard", std::to_string(shard)},
          {"tapestry.shards", std::to_string(shards)}};
}

std::string piece_key(const std::string& name) { return "global." + name; }

std::string piece_name(const std::string& name, const TensorRecord& tensor, const Piece& piece) {
  const auto before =
      std::count_if(tensor.pieces.data(), &piece, [&](const Piece& p) { return p.shard == piece.shard; });
  return before == 0 ? name : concat({name, "#", before + 1});
}

std::string piece_text(const TensorRecord& tensor, const nn::Region& box) {
  std::string shape, offset;
  for (int d = 0; d < tensor.sizes.size(); ++d) {
    shape += (d ? "," : "") + std::to_string(tensor.sizes[d]);
    offset += (d ? "," : "") + std::to_string(box.first[d]);
  }
  return "{\"shape\":[" + shape + "],\"offset\":[" + offset + "]}";
}

std::uint32_t crc32_of(std::uint32_t crc, const Tensor& contiguous) {
  // For a null pointer, which an empty tensor may have, crc32_z() returns its initial value.
  if (contiguous.nbytes() == 0) return crc;
  return static_cast<std::uint32_t>(
      crc32_z(crc, static_cast<const Bytef*>(contiguous.raw_data()), contiguous.nbytes()));
}

std::string random_id() {
  std::random_device random;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return digits;
}

}  // namespace tapestry::distributed::checkpoint
