// Tests the choice among implementations: policies, measurements, the file of choices, and jobs of several
// ranks. The candidates of these tests are functions that wait.
#include "tapestry/kernels/policy.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "tapestry/core/error.h"
#include "tapestry/core/profiler.h"
#include "tapestry/kernels/choice_table.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::kernels;

namespace {

const ChoicePoint product("test_product"), other("test_other");

/// Starts each test with default settings, TAPESTRY_KERNELS=`policies`, and an empty folder for the file.
class Fresh {
 public:
  explicit Fresh(const char* policies = "") {
    setenv("TAPESTRY_KERNELS", policies, 1);
    setenv("TAPESTRY_CACHE_DIR", folder.path().c_str(), 1);
    reset_policy();
  }
  ~Fresh() {
    unsetenv("TAPESTRY_KERNELS");
    setenv("TAPESTRY_CACHE_DIR", "", 1);
    reset_policy();
  }
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;

  /// The only file in the folder.
  std::string file() const {
    std::string found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) found = entry.path();
    return found;
  }
  tests::TempDir folder;
};

/// Two own implementations and the vendor's. Each waits for its number of microseconds.
struct Implementations {
  std::array<Candidate, 3> candidates{Candidate{.name = "own"}, Candidate{.name = "own2"},
                                      Candidate{.name = "lib", .version = "1.2", .vendor = true}};
  std::array<int, 3> microseconds{3000, 3000, 0};
  std::array<std::atomic<int>, 3> trials{};

  std::size_t choose(const std::string& key = "k", const ChoicePoint& point = product) {
    return kernels::choose(
        point, {kCPU}, candidates, [&] { return key; },
        [&](std::size_t i) {
          ++trials[i];
          if (microseconds[i]) std::this_thread::sleep_for(std::chrono::microseconds(microseconds[i]));
        });
  }
  int all_trials() const { return trials[0] + trials[1] + trials[2]; }
};

constexpr std::size_t kOwn = 0, kOwn2 = 1, kLib = 2;

}  // namespace

TEST_CASE("TAPESTRY_KERNELS sets a policy for all operations, and exceptions") {
  const auto policies = [](const char* text) {
    const Fresh fresh(text);
    return std::pair(kernel_policy("test_product"), kernel_policy("test_other"));
  };
  using enum KernelPolicy;
  CHECK(policies("") == std::pair(automatic, automatic));
  CHECK(policies("vendor") == std::pair(vendor, vendor));
  CHECK(policies("custom,test_other=auto") == std::pair(custom, automatic));
  CHECK(policies("test_product=vendor") == std::pair(vendor, automatic));
  CHECK(policies("test_other=custom,vendor") == std::pair(vendor, custom));
}

TEST_CASE("a malformed TAPESTRY_KERNELS is an error at every call, which says what exists") {
  const auto message = [](const char* text) {
    const Fresh fresh(text);
    Implementations impl;
    std::string first, second;
    for (std::string* what : {&first, &second}) try {
        impl.choose();
      } catch (const ValueError& e) {
        *what = e.what();
      }
    CHECK(first == second);
    return first;
  };
  CHECK_THAT(message("fast"), ContainsSubstring("\"fast\" is no policy; write custom, vendor or auto"));
  CHECK_THAT(message("test_product=fast"), ContainsSubstring("\"fast\" is no policy"));
  CHECK_THAT(message("tset_product=auto"), ContainsSubstring("no operation named \"tset_product\""));
  CHECK_THAT(message("tset_product=auto"), ContainsSubstring("test_other, test_product"));
  CHECK_THAT(message("auto,custom"), ContainsSubstring("second policy for all operations"));
  CHECK_THAT(message("test_product=auto,test_product=custom"), ContainsSubstring("has two policies"));
  CHECK(message("auto,").empty());
  CHECK_THROWS_AS(set_kernel_policy("nothing", KernelPolicy::vendor), ValueError);
  CHECK_THROWS_AS(kernel_policy("nothing"), ValueError);
}

TEST_CASE("custom and vendor choose by kind, and fall back to the other kind") {
  const Fresh fresh;
  Implementations impl;
  set_kernel_policy(KernelPolicy::custom);
  CHECK(impl.choose() == kOwn);
  impl.candidates[kOwn].why_not = "odd sizes";
  CHECK(impl.choose() == kOwn2);
  impl.candidates[kOwn2].why_not = "odd sizes";
  CHECK(impl.choose() == kLib);

  set_kernel_policy("test_product", KernelPolicy::vendor);
  impl.candidates[kOwn].why_not = {};
  CHECK(impl.choose() == kLib);
  CHECK(impl.choose("k", other) == kOwn);  // still custom
  impl.candidates[kLib].why_not = "it is not installed";
  CHECK(impl.choose() == kOwn);
  impl.candidates[kOwn].why_not = "odd sizes";
  CHECK_THROWS_WITH(impl.choose(),
                    ContainsSubstring("own: odd sizes") && ContainsSubstring("lib: it is not installed"));
  CHECK(impl.all_trials() == 0);
  CHECK(fresh.file().empty());
}

TEST_CASE("auto measures each shape once and takes the fastest, also in later processes") {
  const Fresh fresh;
  Implementations impl;
  CHECK(impl.choose("a") == kLib);
  CHECK(impl.trials[kOwn] > 2);
  CHECK(impl.trials[kLib] > 2);
  const int trials = impl.all_trials();
  impl.microseconds = {0, 3000, 3000};
  CHECK(impl.choose("a") == kLib);
  CHECK(impl.all_trials() == trials);
  CHECK(impl.choose("b") == kOwn);
  CHECK(impl.choose("a", other) == kOwn);  // another operation with the same key
  const int more = impl.all_trials();
  CHECK(more > trials);

  reset_policy();  // as in a new process
  CHECK(impl.choose("a") == kLib);
  CHECK(impl.choose("b") == kOwn);
  CHECK(impl.all_trials() == more);

  SECTION("a new version of the library is measured again") {
    reset_policy();
    impl.candidates[kLib].version = "1.3";
    CHECK(impl.choose("a") == kOwn);
    CHECK(impl.all_trials() > more);
  }
  SECTION("so is a shape for which the chosen one has become unusable") {
    impl.candidates[kLib].why_not = "it is not installed";
    CHECK(impl.choose("a") == kOwn);
  }
}

TEST_CASE("if one implementation can run the arguments, nothing is measured") {
  const Fresh fresh;
  Implementations impl;
  impl.candidates[kOwn2].why_not = impl.candidates[kLib].why_not = "no";
  CHECK(impl.choose() == kOwn);
  CHECK(impl.all_trials() == 0);
}

TEST_CASE("an implementation that fails when it is measured is not used, and the file does not say so") {
  const Fresh fresh;
  Implementations impl;
  const auto choose_with = [&](std::size_t broken) {
    return choose(
        product, {kCPU}, impl.candidates, [] { return "k"; },
        [&](std::size_t i) {
          ++impl.trials[i];
          check<DeviceError>(i != broken, "[lib] out of order");
          if (i == kOwn) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        });
  };
  CHECK(choose_with(kLib) == kOwn2);
  const int trials = impl.all_trials();
  CHECK(choose_with(kLib) == kOwn2);
  CHECK(impl.all_trials() == trials);
  CHECK(fresh.file().empty());
}

TEST_CASE("deterministic mode excludes implementations, and follows remembered choices only") {
  const Fresh fresh;
  Implementations impl;
  CHECK(impl.choose("known") == kLib);
  const int trials = impl.all_trials();
  use_deterministic_algorithms(true);
  CHECK(are_deterministic_algorithms_enabled());
  CHECK(impl.choose("known") == kLib);
  CHECK(impl.choose("new") == kOwn);
  impl.candidates[kLib].deterministic = false;
  CHECK(impl.choose("known") == kOwn);
  set_kernel_policy(KernelPolicy::vendor);
  CHECK(impl.choose("new") == kOwn);
  CHECK(impl.all_trials() == trials);
  impl.candidates[kOwn].why_not = impl.candidates[kOwn2].why_not = "odd sizes";
  CHECK_THROWS_WITH(impl.choose(), ContainsSubstring("lib: is not deterministic"));
}

TEST_CASE("while a stream is recorded, nothing is measured") {
  const Fresh fresh;
  Implementations impl;
  CHECK(impl.choose("known") == kLib);
  const int trials = impl.all_trials();
  {
    const NoMeasuring recording;
    CHECK(impl.choose("known") == kLib);
    CHECK(impl.choose("new") == kOwn);
    CHECK(impl.all_trials() == trials);
  }
  CHECK(impl.choose("new") == kLib);
}

TEST_CASE("all ranks of a job use the choices of rank 0, and use a new choice at the same time") {
  const Fresh fresh;
  Implementations impl;
  CHECK(impl.choose("known") == kLib);
  const std::string known = kernel_choices();
  reset_policy();

  set_new_shapes(NewShapes::measure_for_later);  // rank 0
  CHECK(impl.choose("known") == kOwn);           // the file has it, but the other ranks do not know it
  CHECK(impl.choose("new") == kOwn);
  const int trials = impl.all_trials();
  CHECK(impl.choose("new") == kOwn);
  CHECK(impl.all_trials() == trials);
  const std::string all = kernel_choices();
  CHECK_THAT(all, ContainsSubstring("known") && ContainsSubstring("new"));
  set_kernel_choices(all);
  CHECK(impl.choose("known") == kLib);
  CHECK(impl.choose("new") == kLib);

  reset_policy();  // rank 1
  set_new_shapes(NewShapes::own);
  CHECK(impl.choose("known") == kOwn);
  CHECK(impl.choose("new") == kOwn);
  set_kernel_choices(all);
  impl.candidates[kLib].version = "1.3";  // the choices were made with another version
  CHECK(impl.choose("known") == kLib);
  CHECK(impl.choose("new") == kLib);
  CHECK(impl.all_trials() == trials);
  CHECK(kernel_choices() == all);
}

TEST_CASE("loaded choices take precedence over the file, and replace the others") {
  const Fresh fresh;
  Implementations impl;
  CHECK(impl.choose("a") == kLib);
  std::string text = kernel_choices();
  text.replace(text.find("\tlib\n"), 5, "\town2\n");
  set_kernel_choices(text);
  CHECK(impl.choose("a") == kOwn2);
  CHECK(kernel_choices() == text);
  for (const std::string& bad :
       {std::string(), text.substr(1), text.substr(0, text.size() - 1), text + "\n", "x\n" + text})
    CHECK_THROWS_AS(set_kernel_choices(bad), ValueError);
  CHECK(kernel_choices() == text);
  CHECK(impl.choose("a") == kOwn2);
}

TEST_CASE("a broken file of choices is measured again and repaired") {
  const Fresh fresh;
  Implementations impl;
  impl.microseconds = {200, 200, 0};
  REQUIRE(impl.choose("a") == kLib);
  REQUIRE(impl.choose("b") == kLib);
  const std::string path = fresh.file(), good = tests::read_file(path);
  for (const std::size_t cut :
       {std::size_t{0}, std::size_t{3}, good.find("\tlib"), good.size() - 6, good.size() - 1}) {
    tests::write_file(path, good.substr(0, cut));
    reset_policy();
    const int trials = impl.all_trials();
    CHECK(impl.choose("a") == kLib);
    CHECK(impl.all_trials() > trials);
    CHECK_THAT(tests::read_file(path), ContainsSubstring("end 1\n"));
  }
  std::string large = good;
  large.append(std::size_t{17} << 20, 'x');
  tests::write_file(path, large);
  reset_policy();
  CHECK(impl.choose("a") == kLib);
}

TEST_CASE("every mutation of a table of choices is read or refused") {
  ChoiceTable table;
  table[{"CPU", "gemm", "f32 m=3"}] = {"own,lib 1", "lib"};
  table[{"CPU", "conv", "bf16"}] = {"own", "own"};
  const std::string good = choices_text(table, "me");
  CHECK(parse_choices(good) == table);
  const std::string_view me = "me", you = "you";
  CHECK(parse_choices(good, &me) == table);
  CHECK_THROWS_AS(parse_choices(good, &you), ValueError);
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_THROWS_AS(parse_choices(std::string_view(good).substr(0, cut)), ValueError);
  tests::for_mutations<ValueError>(good, [](const std::string& text) { parse_choices(text); });
}

TEST_CASE("a folder that cannot be written is no error") {
  Fresh fresh;
  Implementations impl;
  const std::string file = fresh.folder / "file";
  tests::write_file(file, "x");
  for (const std::string& folder : {file, file + "/below", std::string("/proc/nothing"), std::string()}) {
    setenv("TAPESTRY_CACHE_DIR", folder.c_str(), 1);
    reset_policy();
    CHECK(impl.choose("a") == kLib);
    const int trials = impl.all_trials();
    CHECK(impl.choose("a") == kLib);
    CHECK(impl.all_trials() == trials);
  }
  CHECK(tests::read_file(file) == "x");
}

TEST_CASE("the folder of the file follows the environment") {
  const Fresh fresh;
  const auto with = [](const char* name, const char* value) {
    const char* const before = std::getenv(name);
    const std::optional<std::string> saved = before ? std::optional<std::string>(before) : std::nullopt;
    value ? setenv(name, value, 1) : unsetenv(name);
    return saved;
  };
  const auto cache = with("XDG_CACHE_HOME", "/x/cache"), home = with("HOME", "/x/home");
  CHECK(cache_folder() == fresh.folder.path().string());
  unsetenv("TAPESTRY_CACHE_DIR");
  CHECK(cache_folder() == "/x/cache/tapestry");
  unsetenv("XDG_CACHE_HOME");
  CHECK(cache_folder() == "/x/home/.cache/tapestry");
  unsetenv("HOME");
  CHECK(cache_folder().empty());
  with("XDG_CACHE_HOME", cache ? cache->c_str() : nullptr);
  with("HOME", home ? home->c_str() : nullptr);
}

TEST_CASE("threads that meet a shape together measure it once and agree") {
  const Fresh fresh;
  Implementations impl;
  impl.microseconds = {300, 300, 0};
  std::array<std::size_t, 4> got{};
  std::vector<std::thread> threads;
  for (std::size_t& i : got) threads.emplace_back([&] { i = impl.choose("a"); });
  for (std::thread& t : threads) t.join();
  CHECK(got == std::array<std::size_t, 4>{kLib, kLib, kLib, kLib});
  const int calls = 1 + 1 + 5 * 20;  // at most: the warm-up, one call, and five groups
  CHECK(impl.trials[kLib] <= calls);
}

TEST_CASE("the profiler names the implementation, and spans after it keep their names") {
  const Fresh fresh("custom");
  Implementations impl;
  const profiler::Profile profile;
  {
    const tapestry::detail::KernelSpan outer(kCPU, "conv2d");
    {
      const tapestry::detail::KernelSpan span(kCPU, "gemm");
      impl.choose();
      impl.choose();
    }
    impl.candidates[kOwn].why_not = "odd sizes";
    impl.choose();
  }
  const tapestry::detail::KernelSpan plain(kCPU, "copy");
  std::vector<std::string> names;
  for (const Span& span : profile.timeline().spans()) names.push_back(span.name);
  CHECK(names == std::vector<std::string>{"conv2d [own2]", "gemm [own]"});
}

TEST_CASE("TF32 has PyTorch's defaults") {
  const Fresh fresh;
  CHECK_FALSE(allow_tf32_matmul());
  CHECK(allow_tf32_convolution());
  set_allow_tf32_matmul(true);
  set_allow_tf32_convolution(false);
  CHECK(allow_tf32_matmul());
  CHECK_FALSE(allow_tf32_convolution());
}
