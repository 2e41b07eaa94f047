// The emulator must detect each planted bug by the intended means: wrong results, an Error, a shuffled order,
// or a sanitizer.
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/core/child.h"
#include "tests/emulated/memory.h"
#include "tests/emulated/planted.cuh"
#include "tests/emulated/planted_tiles.cuh"
#include "tests/support/catch.h"

using namespace planted;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddress = true, kThread = false;
#elif defined(__SANITIZE_THREAD__)
constexpr bool kAddress = false, kThread = true;
#else
constexpr bool kAddress = false, kThread = false;
#endif

using Memory = emulated::Block<float>;
Memory filled(int n, float value) { return Memory(std::vector<float>(static_cast<std::size_t>(n), value)); }

/// Whether y[i] is f(i) for all i < n.
template <class F>
bool is(const Memory& y, int n, F f) {
  for (int i = 0; i < n; ++i)
    if (!(std::abs(y[static_cast<std::size_t>(i)] - f(i)) <= 1e-5f * std::abs(f(i)))) return false;
  return true;
}
const auto index = [](int i) { return static_cast<float>(i); };
/// Sets x[i] = i.
void number(const Memory& x) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
}

// Each function runs a kernel and returns whether the result is correct.

template <Bug bug>
bool run_normalise() {
  constexpr int kRows = 3, kColumns = 200;
  const Memory x = filled(kRows * kColumns, 2), y(kRows * kColumns);
  launch(&normalise<bug>, kRows, 128, 0, nullptr, x.data(), y.data(), kColumns);
  return is(y, kRows * kColumns, [](int) { return 1.0f / kColumns; });
}
template <Bug bug>
bool run_shift() {
  const Memory x(128);
  number(x);
  launch(&shift<bug>, 1, 128, 0, nullptr, x.data());
  return is(x, 128, [](int i) { return i ? index(i - 1) : 0; });
}
template <Bug bug>
bool run_reverse() {
  const Memory x(8), y(8);
  number(x);
  launch(&reverse_rows<bug>, 1, 8, 0, nullptr, x.data(), y.data());
  return is(y, 8, [](int i) { return index(i / 4 * 4 + 3 - i % 4); });
}
template <Bug bug>
bool run_copy() {
  const Memory x(132), y(128);
  number(x);
  launch(&copy_by_four<bug>, 1, 32, 0, nullptr, x.data(), y.data());
  return is(y, 128, index);
}
template <Bug bug>
bool run_neighbours() {
  constexpr int kRows = 5;
  const Memory x(kRows * 64), y(64);
  number(x);
  launch(&sum_neighbours<bug>, 1, 64, 0, nullptr, x.data(), y.data(), kRows);
  return is(y, 64, [](int t) { return index(kRows * ((t + 1) % 64) + 64 * 10); });
}
template <Bug bug, int kMissing = 0>
bool run_mirrored() {
  constexpr int kRows = 5;
  const Memory x(kRows * 64), y(64);
  number(x);
  launch(&sum_mirrored<bug>, 1, 64, (2 * 64 - kMissing) * sizeof(float), nullptr, x.data(), y.data(), kRows);
  return is(y, 64, [](int t) { return index(kRows * (63 - t) + 64 * 10); });
}
template <Bug bug>
bool run_total() {
  const Memory x = filled(100, 1), y(1);
  launch(&total<bug>, 4, 32, 0, nullptr, x.data(), y.data(), 100);
  return y[0] == 100;
}
template <Bug bug>
bool run_by_block() {
  const Memory x = filled(1, 3), y(4);
  launch(&by_block<bug>, 4, 32, 0, nullptr, x.data(), y.data());
  return is(y, bug == Bug::none ? 4 : 1, [](int) { return 3; });
}
template <Bug bug>
bool run_last() {
  const Memory x(32), y(32);
  x[31] = 5;
  launch(&last_of_warp<bug>, 1, 32, 0, nullptr, x.data(), y.data());
  return is(y, 32, [](int) { return 5; });
}
template <Bug bug>
bool run_rows() {
  const Memory x(64), y(8);
  number(x);
  launch(&largest_of_rows<bug>, 1, 32, 0, nullptr, x.data(), y.data());
  return is(y, 8, [](int r) { return index(8 * r + 7); });
}
template <Bug bug>
bool run_tree() {
  const Memory x(32), y(1);
  number(x);
  launch(&tree_of_warp<bug>, 1, 32, 0, nullptr, x.data(), y.data());
  return y[0] == 31 * 32 / 2;
}
template <Bug bug>
bool run_pairs() {
  constexpr int kPitch = 5;
  std::vector<float> values(8 * kPitch);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const emulated::Block<tapestry::BFloat16> x(values);
  const Memory y(8);
  launch(&sum_of_pairs<bug>, 1, 8, 0, nullptr, x.data(), y.data(), kPitch);
  return is(y, 8, [](int t) { return index(2 * kPitch * t + 1); });
}
template <Bug bug>
bool run_repeatable() {
  const Memory x(64), y(1);
  float want = 0;
  for (int i = 0; i < 64; ++i) {
    x[static_cast<std::size_t>(i)] = 1.0f / static_cast<float>(3 * i + 1);
    want += x[static_cast<std::size_t>(i)];
  }
  y[0] = 0;
  launch(&repeatable_sum<bug>, 1, 64, 0, nullptr, x.data(), y.data());
  return y[0] == want;
}
template <Bug bug>
bool run_exchange() {
  const Memory x(64), y(64);
  number(x);
  launch(&exchange<bug>, 1, 64, 0, nullptr, x.data(), y.data());
  return is(y, 64, [](int i) { return index(i ^ 1); });
}

template <TileBug bug>
bool run_tile() {
  emulated::Block<BFloat16> a(256), b(256);
  const Memory d(256);
  const auto of_a = [](int i, int k) { return static_cast<float>((3 * i + 5 * k) % 7 - 3); };
  const auto of_b = [](int k, int j) { return static_cast<float>((2 * k + 7 * j) % 11 - 5); };
  for (int i = 0; i < 256; ++i) {
    a[static_cast<std::size_t>(i)] = BFloat16(of_a(i / 16, i % 16));
    b[static_cast<std::size_t>(i)] = BFloat16(of_b(i / 16, i % 16));
  }
  launch(&multiply_tile<bug>, 1, 32, 0, nullptr, a.data(), b.data(), d.data());
  return is(d, 256, [&](int i) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += of_a(i / 16, k) * of_b(k, i % 16);
    return sum;
  });
}
template <TileBug bug, int kOffset = 0>
bool run_ring() {
  constexpr int kRows = 7;
  const Memory x(kRows * 64 + kOffset), y(64);
  for (int i = 0; i < kRows * 64; ++i) x[static_cast<std::size_t>(i + kOffset)] = static_cast<float>(i);
  launch(&sum_ring<bug>, 1, 64, 0, nullptr, x.data() + kOffset, y.data(), kRows);
  return is(y, 64, [](int t) { return index(kRows * (63 - t) + 64 * 21); });
}
template <TileBug bug>
bool run_sum_of_blocks() {
  constexpr int kBlocks = 5;
  const Memory x = filled(kBlocks * 64, 1), parts(kBlocks), y(2);
  emulated::Block<int> finished(1);
  for (std::size_t i = 0; i < 2; ++i)
    launch(&sum_of_blocks<bug>, kBlocks, 64, 0, nullptr, x.data(), parts.data(), finished.data(),
           y.data() + i);
  return is(y, 2, [](int) { return kBlocks * 64; });
}
template <TileBug bug>
bool run_histogram() {
  emulated::Block<int> x(320), y(32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i % 32);
  launch(&histogram<bug>, 1, bug == TileBug::fewer_threads ? 32 : 64, 0, nullptr, x.data(), y.data(), 320);
  for (std::size_t i = 0; i < y.size(); ++i)
    if (y[i] != 10) return false;
  return true;
}
template <TileBug bug>
bool run_large() {
  const Memory x(40), y(1);
  number(x);
  launch(&element_of_large<bug>, 1, 1, 0, nullptr, x.data(), y.data(), 50000, 33, 50000);
  return y[0] == 33;
}

/// The means that must detect a bug. Other means may detect it too.
struct Plant {
  const char* name;
  bool (*run)();
  bool in_order = false;          // detected in order, by a wrong result or an Error
  int shuffled = 0;               // detected for at least this many of three seeds
  const char* error = nullptr;    // text of the Error
  const char* address = nullptr;  // text of AddressSanitizer or UBSan
  bool thread = false;            // detected by ThreadSanitizer
  bool elsewhere = false;         // runs in a separate process, because it may corrupt memory
};

const char* const kHeap = "AddressSanitizer: heap-buffer-overflow";

const Plant kPlants[] = {
    {"shared array out of bounds", &run_normalise<Bug::shared_overrun>, true, 3, nullptr, kHeap, false, true},
    {"global memory out of bounds", &run_normalise<Bug::global_overrun>, false, 0, nullptr, kHeap, false,
     true},
    {"inner index out of bounds", &run_reverse<Bug::inner_overrun>, false, 0, nullptr,
     "index 4 out of bounds", true},
    {"misaligned float4", &run_copy<Bug::misaligned>, true, 3, nullptr, "misaligned address", false, true},
    {"misaligned float4 in global memory", &run_copy<Bug::misaligned_load>, true, 3, nullptr,
     "misaligned address", false, true},
    {"dynamic shared memory too small", &run_mirrored<Bug::none, 4>, false, 0, nullptr, kHeap, false, true},
    {"no barrier before a reduction is read", &run_normalise<Bug::no_barrier>, false, 3, nullptr, nullptr,
     true},
    {"no barrier before a neighbour is read", &run_shift<Bug::no_barrier>, false, 2, nullptr, nullptr, true},
    {"no double buffer", &run_neighbours<Bug::no_double_buffer>, true, 3, nullptr, nullptr, true},
    {"an asynchronous copy into what is read", &run_mirrored<Bug::copy_overwritten>, false, 0, nullptr,
     nullptr, true},
    {"an asynchronous copy never waited for", &run_mirrored<Bug::copy_not_awaited>, true, 3,
     "never waited for"},
    {"a sum that is not atomic", &run_total<Bug::plain_sum>, false, 0, nullptr, nullptr, true},
    {"a race between blocks", &run_by_block<Bug::block_race>, false, 0, nullptr, nullptr, true},
    {"a shuffle taken for a fence", &run_last<Bug::shuffle_as_fence>, false, 0, nullptr, nullptr, true},
    {"a divergent barrier", &run_exchange<Bug::divergent_barrier>, true, 3, "different barriers"},
    {"a divergent shuffle", &run_exchange<Bug::divergent_shuffle>, true, 3, "exited"},
    {"two shuffles for one", &run_exchange<Bug::two_shuffles>, true, 3, "different warp operations"},
    {"a lane outside its mask", &run_exchange<Bug::lane_outside_mask>, true, 3, "not in the mask"},
    {"a mask with a lane that has exited", &run_exchange<Bug::exited_lane>, true, 3, "has exited"},
    {"a shuffle with the wrong lane", &run_rows<Bug::wrong_lane>, true, 3},
    {"lanes taken to run in lockstep", &run_tree<Bug::no_syncwarp>, true, 3, nullptr, nullptr, true},
    {"a vector load from a row with an odd pitch", &run_pairs<Bug::odd_pair>, false, 0, nullptr,
     "misaligned address", false, true},
    {"a sum in the order in which threads come", &run_repeatable<Bug::sum_in_any_order>, false, 2},
    {"fragments of a in the wrong order", &run_tile<TileBug::fragments_swapped>, true, 3},
    {"fragments of b not transposed", &run_tile<TileBug::not_transposed>, true, 3},
    {"the fragments of two halves mixed", &run_tile<TileBug::wrong_half>, true, 3},
    {"sums stored to the wrong rows", &run_tile<TileBug::wrong_row_of_result>, true, 3, nullptr, nullptr,
     true},
    {"fragments loaded before the tile is written", &run_tile<TileBug::no_barrier>, true, 3, nullptr, nullptr,
     true},
    {"rows that ldmatrix cannot read", &run_tile<TileBug::misaligned_rows>, false, 0, nullptr,
     "misaligned address", false, true},
    {"a wait that leaves one group too many", &run_ring<TileBug::wait_too_short>, true, 3},
    {"waits that count groups which do not exist", &run_ring<TileBug::groups_not_counted>, true, 3},
    {"a copy into the wrong stage", &run_ring<TileBug::wrong_stage>, true, 3},
    {"copies of other threads without a barrier", &run_ring<TileBug::copies_of_others>, true, 3, nullptr,
     nullptr, true},
    {"an asynchronous copy from a misaligned address", &run_ring<TileBug::none, 1>, true, 3, nullptr,
     "misaligned address", false, true},
    {"no fence before the counter of finished blocks", &run_sum_of_blocks<TileBug::no_fence>, false, 0,
     nullptr, nullptr, true},
    {"no block takes itself for the last", &run_sum_of_blocks<TileBug::wrong_last_block>, true, 3},
    {"the counter of finished blocks not reset", &run_sum_of_blocks<TileBug::counter_not_reset>, true, 3},
    {"a flag in shared memory read without a barrier", &run_sum_of_blocks<TileBug::flag_without_barrier>,
     false, 2, nullptr, nullptr, true},
    {"shared memory that is not initialised", &run_histogram<TileBug::not_initialised>, true, 3},
    {"fewer threads than the kernel was written for", &run_histogram<TileBug::fewer_threads>, true, 3},
    {"an index that overflows 32 bits", &run_large<TileBug::index_overflow>, true, 3, nullptr,
     "signed integer overflow", false, true},
};

class Order {
 public:
  explicit Order(std::uint64_t seed) { cuda_emulator::options().seed = seed; }
  ~Order() { cuda_emulator::options().seed = 0; }
};

/// Runs a bug in this process. Returns true if the result was wrong or the expected Error was thrown.
bool caught(const Plant& plant, std::uint64_t seed) {
  const Order order(seed);
  try {
    return !plant.run();
  } catch (const cuda_emulator::Error& e) {
    INFO(e.what());
    REQUIRE(plant.error);
    CHECK_THAT(e.what(), ContainsSubstring(plant.error));
    CHECK_THAT(e.what(), ContainsSubstring("[planted::"));
    return true;
  }
}

ChildResult in_child(const Plant& plant, int seed) {
  const auto n = &plant - kPlants;
  return run_child("run one planted bug", "PLANTED=" + std::to_string(n) + " SEED=" + std::to_string(seed));
}

}  // namespace

TEST_CASE("run one planted bug", "[.]") {
  const Plant& plant = kPlants[std::atoi(std::getenv("PLANTED"))];
  const Order order(std::strtoull(std::getenv("SEED"), nullptr, 10));
  CHECK(plant.run());
}

TEST_CASE("kernels without a bug give correct results in every order, and no sanitizer reports them") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Order order(seed);
    CAPTURE(seed);
    CHECK(run_normalise<Bug::none>());
    CHECK(run_shift<Bug::none>());
    CHECK(run_reverse<Bug::none>());
    CHECK(run_copy<Bug::none>());
    CHECK(run_neighbours<Bug::none>());
    CHECK(run_mirrored<Bug::none>());
    CHECK(run_total<Bug::none>());
    CHECK(run_by_block<Bug::none>());
    CHECK(run_last<Bug::none>());
    CHECK(run_rows<Bug::none>());
    CHECK(run_tree<Bug::none>());
    CHECK(run_pairs<Bug::none>());
    CHECK(run_repeatable<Bug::none>());
    CHECK(run_exchange<Bug::none>());
    CHECK(run_tile<TileBug::none>());
    CHECK(run_ring<TileBug::none>());
    CHECK(run_sum_of_blocks<TileBug::none>());
    CHECK(run_histogram<TileBug::none>());
    CHECK(run_large<TileBug::none>());
  }
}

TEST_CASE("planted bugs are detected with threads in order or shuffled") {
  for (const Plant& plant : kPlants) {
    CAPTURE(plant.name);
    if ((kAddress || kThread) && !plant.error) continue;  // the sanitizer would end this process
    if (plant.elsewhere) {
      if (plant.in_order) CHECK(in_child(plant, 0).status != 0);
      if (plant.shuffled) CHECK(in_child(plant, 1).status != 0);
      continue;
    }
    if (plant.in_order) CHECK(caught(plant, 0));
    int times = 0;
    for (int seed = 1; seed <= 3; ++seed) times += caught(plant, static_cast<std::uint64_t>(seed));
    CHECK(times >= plant.shuffled);
    CHECK(run_exchange<Bug::none>());  // a failed launch must not affect later ones
  }
}

TEST_CASE("planted bugs are detected by AddressSanitizer, UBSan or ThreadSanitizer") {
  for (const Plant& plant : kPlants) {
    const char* const expected = kAddress                  ? plant.address
                                 : kThread && plant.thread ? "ThreadSanitizer: data race"
                                                           : nullptr;
    if (!expected) continue;
    CAPTURE(plant.name);
    const ChildResult child = in_child(plant, 0);
    CHECK(child.status != 0);
    CHECK_THAT(child.output, ContainsSubstring(expected));
  }
}
