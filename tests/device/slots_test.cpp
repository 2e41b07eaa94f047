// CUDA must have every kernel that required_of_cuda() derives from the CPU's kernels, except those in
// exceptions.h.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tapestry/kernels/slot.h"
#include "tests/device/exceptions.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace device_tests;
using kernels::SlotBase;

namespace {

struct Kernels {
  std::string slot;
  DTypeSet cpu, cuda;
};
std::vector<Kernels> registered() {
  std::vector<Kernels> all;
  for (const SlotBase* s = SlotBase::first(); s; s = s->next())
    all.push_back({s->name(), s->dtypes(DeviceType::cpu), s->dtypes(DeviceType::cuda)});
  std::sort(all.begin(), all.end(), [](const Kernels& a, const Kernels& b) { return a.slot < b.slot; });
  return all;
}

std::vector<Exception> all_exceptions() { return {std::begin(kExceptions), std::end(kExceptions)}; }

std::vector<std::string> faults(const std::vector<Kernels>& all, const std::vector<Exception>& exceptions) {
  std::vector<std::string> found;
  std::map<std::string, DTypeSet> excepted;
  for (const Exception& e : exceptions) excepted[e.slot] |= e.dtypes;
  for (const Kernels& k : all) {
    const DTypeSet excuse = excepted[k.slot];
    for (int d = 0; d < kNumDTypes; ++d) {
      const DType dtype = static_cast<DType>(d);
      const std::string what = k.slot + " " + dtype_name(dtype);
      const bool is_required = contains(required_of_cuda(k.cpu), dtype), is_there = contains(k.cuda, dtype);
      if (is_required && !is_there && !contains(excuse, dtype))
        found.push_back(what + ": there is no CUDA kernel and no reason why");
      if (contains(excuse, dtype) && (is_there || !is_required))
        found.push_back(what + (is_there ? ": there is a CUDA kernel; take the exception away"
                                         : ": an exception for what nobody asks for"));
      if (is_there && k.cpu && !contains(k.cpu, dtype))
        found.push_back(what + ": there is a CUDA kernel and none of the CPU to hold it against");
    }
  }
  for (const Exception& e : exceptions)
    if (std::none_of(all.begin(), all.end(), [&](const Kernels& k) { return k.slot == e.slot; }))
      found.push_back(std::string(e.slot) + ": an exception for a slot that does not exist");
  return found;
}

}  // namespace

TEST_CASE("each CPU kernel has a CUDA kernel or a listed reason") {
  const auto all = registered();
  CHECK(all.size() > 100);
  if (std::none_of(all.begin(), all.end(), [](const Kernels& k) { return k.slot == "relu" && k.cuda; })) {
    std::printf("skipped: no CUDA kernels in this program\n");
    return;
  }
  for (const std::string& fault : faults(all, all_exceptions())) FAIL_CHECK(fault);
}

TEST_CASE("a missing kernel and an unneeded exception are reported") {
  const DTypeSet f64 = bit(DType::f64), i64 = bit(DType::i64);
  const std::vector<Kernels> all = {{"whole", kBoth | f64, kBoth}, {"half", kBoth, kF32}, {"count", i64, 0}};
  CHECK(faults(all, {}).size() == 2);
  CHECK(faults(all, {{"half", kBF16, "later"}, {"count", i64, "later"}}).empty());
  CHECK(faults(all, {{"half", kBoth, "later"}, {"count", i64, "later"}}).size() == 1);
  CHECK(faults(all, {{"half", kBF16, "later"}, {"count", i64, "later"}, {"whole", f64, "why"}}).size() == 1);
  CHECK(faults(all, {{"half", kBF16, "later"}, {"count", i64, "later"}, {"gone", kF32, "why"}}).size() == 1);
  CHECK(faults({{"extra", kF32, kBoth}}, {}).size() == 1);
}
