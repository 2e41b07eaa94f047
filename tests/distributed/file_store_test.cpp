// Tests the file of a file_store: it is shared by processes, truncated by killed writers, or not a store at
// all.
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "tapestry/distributed/comm/store.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using tests::kSoon;
using tests::Process;

TEST_CASE("processes share the file, also through a handle from before fork()") {
  constexpr int kProcesses = 4, kAdds = 50;
  const tests::TempDir folder;
  const auto before = file_store(folder / "store");
  before->add("n", 0);
  {
    std::vector<std::unique_ptr<Process>> processes;
    for (int p = 0; p < kProcesses; ++p)
      processes.push_back(std::make_unique<Process>([&, p] {
        const auto store = p % 2 ? before : file_store(folder / "store");
        store->get("go", kSoon);
        for (int i = 0; i < kAdds; ++i) store->add("n", 1), before->add("m", 1);
      }));
    before->set("go", "");
    for (auto& process : processes) CHECK(process->join() == 0);
  }
  CHECK(before->get("n", kSoon) == std::to_string(kProcesses * kAdds));
  CHECK(before->get("m", kSoon) == std::to_string(kProcesses * kAdds));
}

TEST_CASE("a record that is truncated anywhere is ignored") {
  const tests::TempDir folder;
  const std::string path = folder / "store";
  file_store(path)->set("first", "1");
  const auto whole = std::filesystem::file_size(path);
  file_store(path)->set("second", "2");
  const std::string bytes = tests::read_file(path);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    INFO(size << " of " << bytes.size() << " bytes");
    tests::write_file(path, bytes.substr(0, size));
    const auto store = file_store(path);
    CHECK(store->try_get("first") == (size >= whole ? std::optional<std::string>("1") : std::nullopt));
    CHECK(store->try_get("second") == std::nullopt);
    store->set("third", "3");
    CHECK(store->try_get("third") == "3");
    CHECK(file_store(path)->try_get("third") == "3");
    CHECK(file_store(path)->try_get("second") == std::nullopt);
  }
}

TEST_CASE("a planted link or FIFO in the place of the file is refused") {
  const tests::TempDir folder;
  const std::string path = folder / "store", victim = folder / "victim";
  tests::write_file(victim, "");  // an empty file would become a store
  SECTION("a symbolic link") {
    std::filesystem::create_symlink(victim, path);
    CHECK_THROWS_WITH(file_store(path), ContainsSubstring("[store] file " + path + " is a symbolic link; "));
  }
  SECTION("a dangling symbolic link") {
    std::filesystem::create_symlink(folder / "absent", path);
    CHECK_THROWS_WITH(file_store(path), ContainsSubstring("is a symbolic link"));
    CHECK_FALSE(std::filesystem::exists(folder / "absent"));
  }
  SECTION("a hard link") {
    std::filesystem::create_hard_link(victim, path);
    CHECK_THROWS_WITH(file_store(path), ContainsSubstring("has a second hard link"));
  }
  SECTION("a FIFO") {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    CHECK_THROWS_WITH(file_store(path), ContainsSubstring("is not a regular file"));
  }
  SECTION("a link that replaces the file of an open store") {
    const auto store = file_store(path);
    std::filesystem::remove(path);
    std::filesystem::create_symlink(victim, path);
    CHECK_THROWS_AS(store->set("k", "v"), IoError);
  }
  CHECK(tests::read_file(victim).empty());
}

TEST_CASE("garbage at the end of the file is ignored and overwritten") {
  const tests::TempDir folder;
  int number = 0;
  for (const std::string& tail :
       {std::string(4096, '\0'), std::string(4096, '\xff'), std::string("garbage")}) {
    const std::string path = folder / std::to_string(number++);
    const auto early = file_store(path);
    early->set("k", "v");
    const std::string bytes = tests::read_file(path);
    tests::write_file(path, bytes + tail);
    CHECK(early->try_get("k") == "v");
    CHECK(file_store(path)->try_get("k") == "v");
    CHECK(tests::read_file(path) == bytes + tail);
    early->set("after", "w");
    CHECK(file_store(path)->try_get("after") == "w");
    CHECK(file_store(path)->add("n", 1) == 1);
    CHECK(early->try_get("n") == "1");
    CHECK(tests::read_file(path).find(tail) == std::string::npos);
  }
}

TEST_CASE("kill -9 of a writing process loses only its last record") {
  const tests::TempDir folder;
  const auto store = file_store(folder / "store");
  for (int round = 0; round < 6; ++round) {
    Process writer([&] {
      for (int i = 0;; ++i) {
        store->set("large", std::string(200'000, static_cast<char>('a' + i % 26)));
        store->add("n", 1);
      }
    });
    store->get("n", kSoon);
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 1700 * round));
    kill(writer.id(), SIGKILL);
    CHECK(writer.join() == -SIGKILL);
    const std::string value = store->get("large", kSoon);
    CHECK(value.size() == 200'000);
    CHECK(value.find_first_not_of(value[0]) == std::string::npos);
    CHECK(store->add("rounds", 1) == round + 1);
    CHECK(file_store(folder / "store")->try_get("large") == value);
    store->erase("n");
  }
}

TEST_CASE("a file that is not a store is refused and not changed") {
  const tests::TempDir folder;
  const std::string path = folder / "train.py";
  tests::write_file(path, "import torch\n");
  CHECK_THROWS_AS(file_store(path), IoError);
  CHECK_THROWS_WITH(file_store(path), ContainsSubstring(path) && ContainsSubstring("another path"));
  CHECK(tests::read_file(path) == "import torch\n");
  CHECK_THROWS_AS(file_store(folder / "no/folder"), IoError);
  CHECK_THROWS_AS(file_store(folder.path().string()), IoError);
  CHECK_THROWS_AS(file_store(""), IoError);
}

TEST_CASE("a file that is removed, replaced or truncated during use is an error") {
  const tests::TempDir folder;
  const std::string path = folder / "store", other = folder / "other";
  const auto store = file_store(path);
  store->set("k", "v");
  const std::string bytes = tests::read_file(path);
  tests::write_file(path, bytes.substr(0, bytes.size() - 1));
  CHECK_THROWS_AS(store->try_get("k"), IoError);
  tests::write_file(path, bytes);
  CHECK(store->try_get("k") == "v");
  tests::write_file(other, bytes);
  std::filesystem::rename(other, path);
  CHECK_THROWS_WITH(store->get("k", kSoon), ContainsSubstring("replaced"));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(store->set("k", "w"), IoError);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a full disk is an error and leaves the store unchanged") {
  const tests::TempDir folder;
  const auto store = file_store(folder / "store");
  store->set("k", "v");
  const auto before = std::filesystem::file_size(folder / "store");
  {
    const tests::FileSizeLimit limit(before + 1000);
    CHECK_THROWS_AS(store->set("k", std::string(5000, 'x')), IoError);
    CHECK(store->try_get("k") == "v");
    store->set("small", "fits");
  }
  CHECK(file_store(folder / "store")->try_get("k") == "v");
  CHECK(file_store(folder / "store")->try_get("small") == "fits");
}
