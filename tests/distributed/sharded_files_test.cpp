// Tests Checkpointer with sharded checkpoints, and sharded checkpoints that are incomplete, damaged or
// hostile.
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>

#include "tapestry/distributed/checkpoint/checkpointer.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tests/core/child.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"
#include "tests/support/sharded.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
namespace fs = std::filesystem;
using checkpoint::Index;
using checkpoint::ShardReader;
using distributed_test::Group, distributed_test::kBounded;
using tests::FileSizeLimit, tests::read_file, tests::TempDir, tests::write_file;
using Steps = std::vector<std::int64_t>;

namespace {

/// A model whose weights say at which step they were saved.
struct Small : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 2});
  nn::Buffer& count = buffer("count", zeros({}, DType::i64));
  explicit Small(double value = 0) {
    const NoGradGuard no_grad;
    for (const nn::Parameter& p : parameters()) p->fill_(value);
  }
};

void save(const std::string& folder, const Group& group, std::int64_t step, const StringMap& extra = {}) {
  Small net(static_cast<double>(step));
  if (group && group->size() > 1) test::shard_rows(net, group->rank(), group->size());
  save_sharded(folder, group, &net, {.step = step, .extra = extra});
}

void save_on_3(const std::string& folder, std::int64_t step) {
  run_local_ranks(
      3, [&](const Group& group) { save(folder, group, step); }, kBounded);
}

/// Returns the step of the model that the folder of a checkpoint has, or the error.
std::string loaded(const std::string& folder) {
  Small net(-1);
  const StateDictCopy before = copy_state(net);
  try {
    const nn::Progress progress = load_sharded(folder, &net);
    const double value = net.a.weight->select(0, 4).select(0, 2).item();
    for (const nn::Parameter& p : net.parameters())
      for (const double x : to_vector(p))
        if (x != value) return "mixed steps";
    return std::to_string(progress.step) + (value == static_cast<double>(progress.step) ? "" : " wrong");
  } catch (const IoError& e) {
    return copy_state(net) == before ? e.what() : std::string("changed by a failed load: ") + e.what();
  }
}

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("the text has no " + from);
  return text.replace(at, from.size(), to);
}

std::string with_flipped_bit(std::string bytes, std::size_t at, int bit) {
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ (1 << bit));
  return bytes;
}

/// The text of an index without its own checksum.
std::string without_sum(const std::string& text) {
  const std::size_t at = text.find(",\n \"crc32\": ");
  if (at == std::string::npos) throw std::runtime_error("the index has no checksum");
  return text.substr(0, at) + "\n}\n";
}

}  // namespace

TEST_CASE("distributed::Checkpointer keeps the last and the best, and locks its folder") {
  const TempDir dir;
  const std::string folder = dir / "run";
  fs::create_directory(folder);
  write_file(folder + "/step-00000009", "a file that is no checkpoint");
  run_local_ranks(
      3,
      [&](const Group& group) {
        Small net;
        test::shard_rows(net, group->rank(), 3);
        Checkpointer checkpoints(folder, group, {.keep_last = 2});
        distributed_test::require(!checkpoints.resume(&net) && !checkpoints.latest());
        const double metrics[] = {0.1, 0.9, 0.2, 0.3, 0.4};
        for (int step = 1; step <= 5; ++step) {
          const std::string path = checkpoints.save(&net, {.step = step, .metric = metrics[step - 1]});
          distributed_test::require(path == *checkpoints.latest(), path);
        }
        distributed_test::require(checkpoints.steps() == Steps{2, 4, 5});
        std::string error;
        try {
          checkpoints.save(&net, {.step = 3});
        } catch (const Error& e) {
          error = e.what();
        }
        distributed_test::require(error.find("later than step 3") != std::string::npos, error);
        checkpoints.save(&net, {.step = 5, .metric = 0.5});  // replaces the checkpoint of step 5
        distributed_test::require(checkpoints.resume(&net)->metric == 0.5);
        if (group->rank() == 0) {
          try {
            Small other;
            Checkpointer(folder, nullptr).save(&other, {.step = 9});
          } catch (const IoError& e) {
            error = e.what();
          }
          distributed_test::require(error.find("is in use by process") != std::string::npos, error);
        }
        group->barrier().wait();
      },
      kBounded);
  CHECK(files_in(folder) ==
        std::set<std::string>{".lock", "step-00000002", "step-00000004", "step-00000005", "step-00000009"});
  CHECK(files_in(folder + "/step-00000005") ==
        std::set<std::string>{"index.json", "shard-00000-of-00003.1.safetensors",
                              "shard-00001-of-00003.1.safetensors", "shard-00002-of-00003.1.safetensors"});
  CHECK_THROWS_AS(Checkpointer(folder, nullptr, {.keep_last = -1}), ValueError);
  write_file(dir / "file", "");
  CHECK_THROWS_WITH(Checkpointer(dir / "file", nullptr), ContainsSubstring("cannot be made"));
}

TEST_CASE("a job resumes from the checkpoint before a damaged one, which a warning names") {
  const TempDir dir;
  const std::string folder = dir / "run", first = folder + "/step-00000001", last = folder + "/step-00000002",
                    file = "/shard-00001-of-00003.safetensors", shard = last + file;
  // A rank of two or three reads other rows than the ranks that wrote.
  for (const int ranks : {3, 2, 1}) {
    if (kSanitized && ranks != 2) continue;
    for (const std::string damage : {"missing", "truncated", "foreign", "swapped", "bit", "index",
                                     "swapped index", "bit of the index"}) {
      INFO(damage << ", " << ranks << " ranks");
      fs::remove_all(folder);
      save_on_3(first, 1);
      save_on_3(last, 2);
      const std::string named = damage.find("index") == std::string::npos ? shard : last + "/index.json";
      if (damage == "missing") fs::remove(shard);
      if (damage == "truncated") write_file(shard, read_file(shard).substr(0, 500));
      if (damage == "foreign") {
        fs::remove_all(dir / "other");
        save_on_3(dir / "other", 2);
        fs::copy_file(dir / ("other" + file), shard, fs::copy_options::overwrite_existing);
      }
      if (damage == "swapped")
        fs::copy_file(first + file, shard, fs::copy_options::overwrite_existing);  // step 1 keeps its own
      if (damage == "bit") write_file(shard, with_flipped_bit(read_file(shard), fs::file_size(shard) - 2, 4));
      if (damage == "index") write_file(named, "{");
      if (damage == "swapped index")
        fs::copy_file(first + "/index.json", named, fs::copy_options::overwrite_existing);
      if (damage == "bit of the index")
        write_file(named, replaced(read_file(named), "\"step\": 2", "\"step\": 3"));
      // An index of another step finds that the shards are not its own.
      const std::string blamed = damage == "swapped index" ? last + "/shard-" : named;
      CHECK_THAT(loaded(last), ContainsSubstring(blamed) && !ContainsSubstring("changed by"));
      const ChildResult child =
          run_child("the job that resumes", "FOLDER='" + folder + "' RANKS=" + std::to_string(ranks));
      CHECK(child.status == 0);
      CHECK_THAT(child.output, ContainsSubstring("warning") && ContainsSubstring(blamed) &&
                                   ContainsSubstring(last + " is skipped") &&
                                   ContainsSubstring("resumed from step 1 and saved step 2"));
      CHECK(loaded(last) == "2");
      if (damage != "foreign" && damage != "swapped") CHECK(*Checkpointer(folder, nullptr).latest() == last);
    }
    // A checkpoint of a newer library is not damaged: the steps since the one before it must not be lost.
    const std::string index = without_sum(read_file(last + "/index.json"));
    write_file(last + "/index.json", replaced(index, "\"version\": 2", "\"version\": 3"));
    const ChildResult child =
        run_child("the job that resumes", "FOLDER='" + folder + "' RANKS=" + std::to_string(ranks));
    CHECK(child.status != 0);
    CHECK_THAT(child.output, !ContainsSubstring("is skipped") && !ContainsSubstring("resumed from"));
    CHECK_THROWS_WITH(Checkpointer(folder, nullptr).latest(), ContainsSubstring("reads versions 1 to 2"));
  }
  fs::remove_all(first);
  fs::remove(last + "/" + "index.json");
  CHECK_FALSE(Checkpointer(folder, nullptr).latest());
  write_file(last + "/index.json", "{}");
  Small net;
  CHECK_THROWS_WITH(Checkpointer(folder, nullptr).resume(&net),
                    ContainsSubstring("none of the 1 checkpoints"));
}

TEST_CASE("the job that resumes", "[.]") {
  run_local_ranks(
      std::atoi(std::getenv("RANKS")),
      [&](const Group& group) {
        Small net(-1);
        test::shard_rows(net, group->rank(), group->size());
        Checkpointer checkpoints(std::getenv("FOLDER"), group);
        const nn::Progress progress = *checkpoints.resume(&net);
        const NoGradGuard no_grad;
        for (const nn::Parameter& p : net.parameters()) {
          if (p->numel() > 0) distributed_test::require(p->reshape({-1})[0].item() == 1, "wrong weights");
          p->fill_(2);
        }
        checkpoints.save(&net, {.step = 2});
        if (group->rank() == 0)
          std::printf("resumed from step %lld and saved step 2\n", static_cast<long long>(progress.step));
      },
      kBounded);
}

TEST_CASE("a writer that is killed at any point leaves the checkpoint before") {
  const TempDir dir;
  for (const std::string again : {"", "again"}) {
    // A number is the length of a file at which the kernel kills the process: in a shard, and in the index.
    for (const std::string at : {"folder", "100", "shard-00000", "shard-00002", "50000", "index.json"}) {
      if (at == "index.json" && !again.empty()) continue;  // its old index has this name too
      if (kSanitized && again.empty() == (at == "shard-00002")) continue;
      const std::string folder = dir / ("run" + again + at);
      INFO(folder);
      save_on_3(folder + "/step-00000001", 1);
      // The checkpoint that is replaced has step 2 as well, and weights of step 1.
      if (!again.empty()) fs::copy(folder + "/step-00000001", folder + "/step-00000002");
      const ChildResult child =
          run_child("the writer that is killed", "FOLDER='" + folder + "' KILL_AT='" + at + "'");
      CHECK(child.status != 0);
      CHECK_THAT(child.output, !ContainsSubstring("not killed"));
      const auto last = Checkpointer(folder, nullptr).latest();
      REQUIRE(last);
      const bool complete =
          files_in(folder).contains("step-00000002") && loaded(folder + "/step-00000002") == "2";
      if (at == "index.json" && again.empty()) CHECK(complete);
      if (!complete) CHECK(loaded(*last) == "1");
      // The next job cleans up and goes on.
      run_local_ranks(
          3,
          [&](const Group& group) {
            Small net(2);
            test::shard_rows(net, group->rank(), 3);
            Checkpointer checkpoints(folder, group);
            checkpoints.save(&net, {.step = 2});
          },
          kBounded);
      CHECK(loaded(folder + "/step-00000002") == "2");
      CHECK(files_in(folder + "/step-00000002").size() == 4);
      CHECK(loaded(folder + "/step-00000001") == "1");
    }
  }
}

TEST_CASE("the writer that is killed", "[.]") {
  const std::string folder = std::string(std::getenv("FOLDER")) + "/step-00000002",
                    at = std::getenv("KILL_AT");
  const std::set<std::string> before = fs::exists(folder) ? files_in(folder) : std::set<std::string>();
  if (std::isdigit(static_cast<unsigned char>(at[0]))) {
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(std::stoul(at));
    setrlimit(RLIMIT_FSIZE, &limit);  // SIGXFSZ ends the process
  } else {
    std::thread([=] {
      for (;;) {
        std::error_code error;
        for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
             entry.increment(error)) {
          const std::string name = entry->path().filename().string();
          if (!before.contains(name) &&
              (at == "folder" || (name.starts_with(at) && name.ends_with(".safetensors")) || name == at))
            std::raise(SIGKILL);
        }
      }
    }).detach();
  }
  const std::string text(100'000, 'x');  // makes the index the largest file
  for (int i = 0; i < 100; ++i)
    run_local_ranks(
        3,
        [&](const Group& group) {
          save(folder, group, 2, {{"text", text}});
        },
        kBounded);
  std::printf("not killed\n");
}

TEST_CASE("a full disk at any point of a sharded checkpoint is an error on all ranks") {
  const TempDir dir;
  const std::string folder = dir / "step-00000001";
  save_on_3(folder, 1);
  const std::set<std::string> before = files_in(folder);
  // The index is the largest file, because of the text, so the last limit hits the index alone.
  const std::string text(100'000, 'x');
  for (const rlim_t limit : {0, 100, 700, 50'000}) {
    for (const std::string& target : {folder, dir / "new"}) {
      std::vector<std::string> errors(3);
      {
        const FileSizeLimit full(limit);
        run_local_ranks(
            3,
            [&](const Group& group) {
              try {
                save(target, group, 2, {{"text", text}});
              } catch (const Error& e) {
                errors[static_cast<std::size_t>(group->rank())] = e.what();
              }
            },
            kBounded);
      }
      INFO(limit);
      for (const std::string& error : errors)
        CHECK_THAT(error, ContainsSubstring(limit == 50'000 ? "index.json" : "shard-0000") &&
                              ContainsSubstring("cannot be written"));
      CHECK(loaded(folder) == "1");
      CHECK(files_in(folder) == before);
      CHECK_FALSE(fs::exists(dir / "new"));
    }
  }
}

TEST_CASE("a rank that ends before it has written leaves the checkpoint before") {
  const TempDir dir;
  const std::string folder = dir / "step";
  save_on_3(folder, 1);
  CHECK_THROWS_AS(run_local_ranks(
                      3,
                      [&](const Group& group) {
                        if (group->rank() == 1) fail("this rank ends");
                        save(folder, group, 2);
                      },
                      kBounded),
                  Error);
  CHECK(loaded(folder) == "1");
}

TEST_CASE("a flipped bit anywhere in a checkpoint is found before anything is loaded, or harmless") {
  const TempDir dir;
  const std::string folder = dir / "step";
  save_on_3(folder, 1);
  for (const std::string name : {"/shard-00001-of-00003.safetensors", "/index.json"}) {
    const std::string file = folder + name, bytes = read_file(file);
    std::size_t harmless = 0;
    for (std::size_t at = 0; at < bytes.size(); at += kSanitized ? 17 : 1) {
      write_file(file, with_flipped_bit(bytes, at, static_cast<int>(at % 8)));
      const std::string result = loaded(folder);
      if (result == "1") ++harmless;
      else if (result.find(file) == std::string::npos || result.starts_with("changed by"))
        FAIL("byte " << at << " of " << name << ": " << result);
    }
    CHECK(harmless < 20);  // in the name of the index's checksum, and spaces that pad the header of a shard
    // The last element of the shard.
    write_file(file, with_flipped_bit(bytes, bytes.size() - 2, 4));
    Small net;
    if (name != "/index.json") CHECK_NOTHROW(load_sharded(folder, &net, {.verify = false}));
    write_file(file, bytes);
  }
}

TEST_CASE("ranks that read a piece in part check the blocks that they read") {
  struct Tall : nn::Module {
    nn::Parameter& w = param("w", arange(600 * 1024).to(DType::f32).reshape({600, 1024}));
  };
  const TempDir dir;
  const std::string folder = dir / "step", shard = folder + "/shard-00000-of-00001.safetensors";
  {
    Tall net;
    optim::SGD optimizer(net.parameters(), {.lr = 0.125});
    save_sharded(folder, nullptr, {&net, &optimizer}, {.step = 1});
  }
  const Index index = Index::read(folder);
  CHECK(index.tensors.at("w").block_rows == 256);  // 1 MiB
  CHECK(index.tensors.at("w").pieces[0].blocks.size() == 3);
  CHECK(Index::parse("index", index.text()).text() == index.text());
  const std::string bytes = read_file(shard);
  // The position of a tensor's first byte in the file, after 8 bytes and the header whose length they have.
  const auto position_of = [&](const std::string& name) {
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    return 8 + header + SafetensorsFile(shard).find(name)->begin;
  };
  const std::size_t w = position_of("w"), lr = position_of("training/optimizer/groups.0.lr");
  const auto damaged_ranks = [&](int ranks) {
    std::string damaged;
    for (int r = 0; r < ranks; ++r) {
      Tall net;
      test::shard_rows(net, r, ranks);
      try {
        load_sharded(folder, &net);
      } catch (const IoError& e) {
        CHECK_THAT(e.what(), ContainsSubstring(shard) && ContainsSubstring("\"w\" in ["));
        damaged += std::to_string(r);
      }
    }
    return damaged;
  };
  CHECK(damaged_ranks(3) == "");
  // Row 100 is in the block of the rows 0 to 255.
  write_file(shard, with_flipped_bit(bytes, w + 100 * 4096 + 10, 3));
  CHECK(damaged_ranks(3) == "01");  // 0 to 199, and 200 to 399, which has rows of the block
  CHECK(damaged_ranks(2) == "0");   // 0 to 299
  // Row 310 is in the block of the rows 256 to 511.
  write_file(shard, with_flipped_bit(bytes, w + 310 * 4096 + 10, 3));
  CHECK(damaged_ranks(4) == "123");  // 150 to 299, 300 to 449 and 450 to 599
  // Files that were written without sums of blocks: every rank checks the whole piece.
  Index old = index;
  for (auto& [name, tensor] : old.tensors)
    for (checkpoint::Piece& piece : tensor.pieces) piece.blocks.clear();
  write_file(folder + "/index.json", without_sum(old.text()));
  CHECK(damaged_ranks(3) == "012");
  write_file(shard, bytes);
  CHECK(damaged_ranks(3) == "");
  // The numbers of an optimizer are checked too.
  write_file(folder + "/index.json", index.text());
  write_file(shard, with_flipped_bit(bytes, lr + 3, 3));
  Tall net;
  optim::SGD optimizer(net.parameters(), {.lr = 0.5});
  CHECK_THROWS_WITH(load_sharded(folder, {&net, &optimizer}), ContainsSubstring("groups.0.lr"));
  CHECK(optimizer.lr() == 0.5);
}

TEST_CASE("a checkpoint of format version 1, whose pieces are rows, loads") {
  const TempDir dir;
  const std::string folder = dir / "step";
  save_on_3(folder, 7);
  const std::string text = without_sum(read_file(folder + "/index.json"));
  // [shard, [first row, 0], [rows, 3], CRC-32] was [shard, first row, rows, CRC-32].
  const std::regex piece(R"(\[(\d+),\[(\d+)(?:,0)*\],\[(\d+)(?:,\d+)*\],(\d+)\])");
  const std::string old =
      replaced(std::regex_replace(text, piece, "[$1,$2,$3,$4]"), "\"version\": 2", "\"version\": 1");
  REQUIRE(old.find("\"shape\": [5,3], \"pieces\": [[0,0,2,") != std::string::npos);
  write_file(folder + "/index.json", old);
  CHECK(loaded(folder) == "7");
  CHECK(Index::parse("old", old).text() == Index::parse("new", text).text());
  CHECK_THROWS_WITH(
      Index::parse("old", replaced(old, "[5,3], \"pieces\": [[0,0,2,", "[5,3], \"pieces\": [[0,0,3,")),
      ContainsSubstring("each element must be in one piece"));
}

TEST_CASE("an index that lies is refused") {
  const TempDir dir;
  const std::string folder = dir / "step";
  save_on_3(folder, 1);
  const std::string text = read_file(folder + "/index.json"), good = without_sum(text);
  CHECK(Index::parse("index", text).text() == text);
  CHECK(Index::parse("index", good).text() == text);  // an index that was written without a checksum
  CHECK_THROWS_WITH(Index::parse("index", replaced(text, "\"step\": 1", "\"step\": 2")),
                    ContainsSubstring("is not what was written"));
  const std::string file0 = "\"shard-00000-of-00003.safetensors\"",
                    weight = "\"shape\": [5,3], \"pieces\": [[0,[0,0],[2,3],";
  REQUIRE(good.find(weight) != std::string::npos);
  const struct {
    std::string from, to, error;
  } cases[] = {
      {file0, "\"../shard-00000-of-00003.safetensors\"", "names the file"},
      {file0, "\"/etc/passwd\"", "names the file"},
      {file0, "\"shard-00001-of-00003.safetensors\"", "names the file"},
      {file0, "\"shard-00000-of-00003.x/../y.safetensors\"", "names the file"},
      {file0, "\"shard-00000-of-00003.-1.safetensors\"", "names the file"},
      {file0, "\"shard-00000-of-00003.01.safetensors\"", "names the file"},
      {file0, "\"shard-00000-of-00003.safetensors\\u0000\"", "names the file"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[1,0],[2,3],", "each element must be in one piece"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,0],[3,3],", "each element must be in one piece"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,0],[0,3],", "not from 1"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,0],[9223372036854775807,3],",
       "each element must be in one piece"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[-1,0],[2,3],", "not from 0"},
      {weight, "\"shape\": [5,3], \"pieces\": [[3,[0,0],[2,3],", "not from 0 to 2"},
      {weight, "\"shape\": [6,3], \"pieces\": [[0,[0,0],[2,3],", "no piece has [5:6, 0:3]"},
      {weight, "\"shape\": [4,3], \"pieces\": [[0,[0,0],[2,3],", "each element must be in one piece"},
      {weight, "\"shape\": [5,9223372036854775807], \"pieces\": [[0,[0,0],[2,3],", "does not fit in 63 bits"},
      {weight, "\"shape\": [5,18446744073709551615], \"pieces\": [[0,[0,0],[2,3],",
       "not an integer of 63 bits"},
      {weight, "\"shape\": [5,-3], \"pieces\": [[0,[0,0],[2,3],", "not from 0"},
      {weight, "\"shape\": [5,3.5], \"pieces\": [[0,[0,0],[2,3],", "not an integer"},
      {weight, "\"shape\": [5,1,1,1,1,1,1,1,3], \"pieces\": [[0,[0,0],[2,3],", "9 dimensions"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,0],[2,3],1,", "not a list of shard"},
      {weight, R"("blocks": 1, )" + weight, "lacks \"block_rows\""},
      {weight, R"("block_rows": 0, "blocks": [[],[],[]], )" + weight, "not from 1"},
      {weight, R"("block_rows": 1, "blocks": [[],[]], )" + weight, "3 pieces"},
      {weight, R"("block_rows": 1, "blocks": [[1,2,3],[],[]], )" + weight, "2 rows with 3 checksums"},
      {weight, R"("block_rows": 2, "blocks": [[1],[],[]], )" + weight, "2 rows with 1 checksums"},
      {weight, R"("block_rows": 1, "blocks": [[1,-2],[1,2],[]], )" + weight, "not from 0"},
      {"\"float32\"", "\"float31\"", "no dtype"},
      {"\"version\": 2", "\"version\": 0", "format version 0"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,1],[2,2],", "a piece has [0:2, 1:3] where [0:2, 0:3]"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,0],[3,2],", "overlap"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0],[2,3],", "not a list of 2 integers"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,0,2,", "not a list of 2 integers"},
      {weight, "\"shape\": [5,3], \"pieces\": [[0,[0,9223372036854775807],[2,3],", "outside of [0:5, 0:3]"},
      {"\"tapestry.sharded_checkpoint\"", "\"other\"", "format \"other\""},
      {"\"step\": 1", "\"step\": -1", "\"step\" is -1"},
      {"\"step\": 1", "\"step\": \"1\"", "\"step\" is not an integer"},
      {"\"aliases\": {}", "\"aliases\": {\"x\": \"y\"}", "no such pair"},
      {"\"aliases\": {}", "\"aliases\": {\"a.weight\": \"a.bias\"}", "no such pair"},
      {"\"aliases\": {}", "\"aliases\": [[[[[[[[1]]]]]]]]", "nested too deep"},
      {"\"extra\": {}", "\"extra\": {\"a\": 1}", "is not a text"},
      {"\"shards\": [", "\"shards\": [{\"file\": \"a\", \"bytes\": 9},", "names the file"},
      {"\"tensors\": {", "\"tensor\": {", "lacks \"tensors\""},
      {"{", "", "is not valid JSON"},
  };
  for (const auto& c : cases) {
    INFO(c.to);
    CHECK_THROWS_WITH(Index::parse("the index", replaced(good, c.from, c.to)),
                      ContainsSubstring("the index: ") && ContainsSubstring(c.error));
  }
  const std::string newer = replaced(good, "\"version\": 2", "\"version\": 3");
  CHECK_THROWS_AS(Index::parse("the index", newer), ValueError);
  for (const std::string text : {"", "[]", "null", "{}", "\"\"", "{\"format\":1}"})
    CHECK_THROWS_AS(Index::parse("the index", text), IoError);
  CHECK_THROWS_AS(Index::parse("the index", std::string(1'000'000, '[')), IoError);
}

TEST_CASE("shards that do not fit their index are refused") {
  const TempDir dir;
  const std::string folder = dir / "step", shard = folder + "/shard-00001-of-00003.safetensors",
                    index = folder + "/index.json";
  save_on_3(folder, 1);
  const Safetensors good = load_safetensors(shard);
  const std::string bytes = read_file(shard), good_index = without_sum(read_file(index));
  const auto with = [&](const StringMap& metadata, const std::string& error, const NamedTensors& more = {},
                        const std::string& without = "") {
    StringMap all = good.metadata;
    for (const auto& [key, value] : metadata) all[key] = value;
    NamedTensors tensors = more;
    for (const auto& [name, t] : good.tensors)
      if (name != without) tensors.emplace_back(name, t);
    save_safetensors(shard, tensors, all);
    write_file(
        index,
        replaced(good_index, "\"bytes\": " + std::to_string(bytes.size()) + ",\n   \"file\": \"shard-00001",
                 "\"bytes\": " + std::to_string(fs::file_size(shard)) + ",\n   \"file\": \"shard-00001"));
    CHECK_THAT(loaded(folder),
               ContainsSubstring(shard) && ContainsSubstring(error) && !ContainsSubstring("changed by"));
  };
  with({{"tapestry.shard", "2"}}, "belongs to another checkpoint: its tapestry.shard is \"2\", not \"1\"");
  with({{"tapestry.checkpoint.id", "0"}}, "belongs to another checkpoint");
  // Offsets that lie outside of the global shape, or inside it but elsewhere.
  with({{"global.a.weight", "{\"shape\":[5,3],\"offset\":[7,0]}"}}, "but the index says");
  with({{"global.a.weight", "{\"shape\":[5,3],\"offset\":[0,0]}"}}, "but the index says");
  with({}, "tensors, but the index lists", {{"more", zeros({2})}});
  with({}, "lacks the tensor \"a.bias\"", {{"more", zeros({2})}}, "a.bias");
  with({}, "has \"a.bias\" of float32 [3]", {{"a.bias", zeros({3})}}, "a.bias");
  with({}, "has \"a.bias\" of float64 [2]", {{"a.bias", zeros({2}, DType::f64)}}, "a.bias");
  // The index of another checkpoint.
  write_file(shard, bytes);
  write_file(index, good_index);
  CHECK(loaded(folder) == "1");
  save_on_3(dir / "other", 2);
  write_file(index, read_file(dir / "other/index.json"));
  CHECK_THAT(loaded(folder), ContainsSubstring("belongs to another checkpoint"));
}

TEST_CASE("mutated checkpoints are loaded or refused") {
  const TempDir dir;
  const std::string folder = dir / "step", shard = folder + "/shard-00001-of-00003.safetensors",
                    index = folder + "/index.json";
  save_on_3(folder, 1);
  const auto load = [&] {
    Small net;
    try {
      load_sharded(folder, &net);
    } catch (const ValueError&) {  // another model
    }
  };
  const std::string bytes = read_file(shard), text = read_file(index);
  CHECK(tests::for_mutations<IoError>(text, [&](const std::string& mutated) {
          write_file(index, mutated);
          load();
        }) >= 150);
  write_file(index, text);
  CHECK(tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
          write_file(shard, mutated);
          load();
        }) >= 150);
}
