// The meta device: every operation gives the shapes, dtypes, strides and graph that it gives on a CPU, or
// says that it must read elements.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/ctc.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/dlpack.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/core/stream.h"
#include "tests/support/catch.h"
#include "tests/support/op_check.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// The operations (or variants of one) whose results depend on elements in shape, or are numbers of the host.
const std::set<std::string> kReadsElements = {
    "masked_scatter",
    "masked_scatter/in_place",
    "unique_consecutive",
    "unique_consecutive/dim",
    "unique/dim",
    "nanquantile",
    "nanquantile/list",
    "allclose",
    "bincount",
    "equal",
    "histc",
    "index/mask",
    "index_put/mask",
    "item",
    "linalg.lstsq",
    "masked_select",
    "nonzero",
    "nonzero/numpy",
    "one_hot/counted",
    "repeat_interleave/tensor",
    "unique",
};

Tensor on_meta(const Tensor& t) {
  return detail::make_tensor(Storage::allocate(kMeta, t.storage()->bytes()), t.dtype(), t.sizes(),
                             t.strides(), t.storage_offset());
}

// What a result looks like, in one line.
std::string face(const Tensor& t, Device device) {
  if (!t.defined()) return "undefined";
  std::ostringstream out;
  out << t.dtype() << " " << t.sizes() << " strides " << t.strides() << " offset " << t.storage_offset();
  if (t.device() != device) out << " on " << t.device();
  if (t.requires_grad()) out << " " << t.impl()->grad_record->note();
  return out.str();
}

// Runs the case and a backward pass, and describes all results.
std::vector<std::string> faces(const GoldenOp& op, const std::shared_ptr<const Golden>& golden, Layout layout,
                               Device device) {
  const DeviceGuard guard(device);
  const DType dtype = golden->generic() ? golden->run_dtypes(kFloats).back() : DType::f64;
  std::vector<Tensor> inputs;
  for (const auto& v : golden->inputs) {
    Tensor t = v ? make(*v, golden->actual(v->dtype, dtype), layout) : Tensor();
    if (v && device.is_meta()) t = on_meta(t);
    const bool wanted =
        v && v->dtype == DType::f64 && golden->generic() && !golden->constant.count(inputs.size());
    if (wanted && golden->has_grads) t.set_requires_grad();
    inputs.push_back(t);
  }
  const std::vector<Tensor> outputs = op.fn(OpCase(golden, inputs)).tensors;
  std::vector<std::string> all;
  std::vector<Tensor> roots, grads;
  const bool on_host = op.op == "allclose" || op.op == "equal";  // a bool, which OpCase makes a CPU tensor
  for (const Tensor& y : outputs) {
    all.push_back(face(y, on_host ? kCPU : device));
    if (!y.defined() || !y.requires_grad()) continue;
    roots.push_back(y);
    grads.push_back(ones(y.sizes(), {y.dtype(), y.device()}));
  }
  if (!roots.empty()) autograd::backward(roots, grads);
  for (const Tensor& x : inputs)
    if (x.defined() && x.requires_grad()) all.push_back("gradient " + face(x.grad(), device));
  return all;
}

// Compares a case on the meta device with the CPU. Sets `read` if the operation had to read elements.
Failures compare_case(const GoldenOp& op, const std::shared_ptr<const Golden>& golden, Layout layout,
                      bool& read) {
  const std::string label = op.op + " (" + golden->label + ", " + layout_name(layout) + ")";
  std::vector<std::string> expected, got;
  try {
    expected = faces(op, golden, layout, kCPU);
  } catch (const Error&) {
    return {};  // such as a view of a layout that has none
  }
  try {
    got = faces(op, golden, layout, kMeta);
  } catch (const DeviceError& e) {
    read = std::string(e.what()).rfind("[" + base_name(op.op) + "] ", 0) == 0 &&
           std::string(e.what()).find("is on the meta device") != std::string::npos;
    return read ? Failures{} : Failures{label + ": throws " + e.what()};
  } catch (const std::exception& e) {
    return {label + ": throws " + e.what()};
  }
  if (got == expected) return {};
  std::string text = label + " gives";
  for (std::size_t i = 0; i < std::max(expected.size(), got.size()); ++i)
    text += "\n  on the CPU:  " + (i < expected.size() ? expected[i] : "nothing") +
            "\n  on meta:     " + (i < got.size() ? got[i] : "nothing");
  return {text};
}

}  // namespace

TEST_CASE("every operation gives the same shapes and graph on the meta device") {
  std::map<std::string, int> reads, cases;
  const MemoryStats before = memory_stats(kMeta);
  for (const GoldenOp* op : golden_ops())
    for (const auto& golden : golden_family(op->family)) {
      if (golden->op != op->op) continue;
      for (const Layout layout : {Layout::dense, Layout::transposed, Layout::channels_last}) {
        bool read = false;
        for (const std::string& failure : compare_case(*op, golden, layout, read)) FAIL_CHECK(failure);
        ++cases[op->op];
        reads[op->op] += read;
      }
    }
  CHECK(cases.size() > 300);
  for (const auto& [op, count] : reads) {
    INFO(op << " read elements in " << count << " of " << cases[op] << " runs");
    CHECK((count > 0) == (kReadsElements.count(op) > 0));
  }
  CHECK(memory_stats(kMeta).allocations == before.allocations);
}

TEST_CASE("tensors on the meta device have shapes and no memory") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  const Tensor x = empty({1 << 20, 1 << 20, 16}, {DType::f32, kMeta});
  CHECK(x.device().str() == "meta");
  CHECK(x.nbytes() == std::size_t{1} << 46);
  const Tensor y = (x * 2 + x.transpose(0, 1)).sum({0, 2});
  CHECK(y.sizes() == Shape{1 << 20});
  CHECK(y.device() == kMeta);
  CHECK(memory_stats(kCPU).allocated == before);
  CHECK(memory_stats(kMeta).allocated == 0);
  CHECK(memory_stats(kMeta).peak_allocated == 0);
  reset_peak_memory(kMeta);
  empty_cache(DeviceType::meta);
  synchronize(kMeta);
  CHECK(current_stream(kMeta).done());
  CHECK_THROWS_AS(empty({2}, Device("meta:1")), DeviceError);
}

TEST_CASE("tensors on the meta device print their shapes") {
  CHECK(empty({2, 3}, kMeta).str() == "tensor(..., device='meta', size=[2, 3])");
  CHECK(empty({2}, {DType::f16, kMeta}).set_requires_grad().str() ==
        "tensor(..., device='meta', size=[2], dtype=float16, requires_grad=True)");
  CHECK(zeros({0, 4}, {DType::i64, kMeta}).str() == "tensor(..., device='meta', size=[0, 4], dtype=int64)");
}

TEST_CASE("copies to the meta device drop the elements") {
  const Tensor x = randn({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  const Tensor m = x.to("meta");
  CHECK(m.device() == kMeta);
  CHECK(m.strides() == x.strides());
  CHECK_THROWS_AS(m.to("cpu"), DeviceError);
  CHECK_THROWS_WITH(m.to("cpu"), ContainsSubstring("[to] ") && ContainsSubstring("to_empty"));
  const Tensor w = randn({3}).set_requires_grad();
  const Tensor y = w.to("meta");
  CHECK(y.requires_grad());
  // The gradient would have to leave the meta device.
  CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("meta device"));
  CHECK(!w.grad().defined());
}

TEST_CASE("what must read elements of the meta device says so by name") {
  const Tensor m = ones({2, 2}, kMeta);
  const auto refuses = [](const char* op, const std::function<void()>& fn) {
    INFO(op);
    CHECK_THROWS_AS(fn(), DeviceError);
    CHECK_THROWS_WITH(
        fn(), ContainsSubstring(std::string("[") + op + "] ") && ContainsSubstring("is on the meta device"));
  };
  refuses("item", [&] { m.sum().item(); });
  refuses("data", [&] { m.data<float>(); });
  refuses("to", [&] { m.to_vector<float>(); });
  refuses("copy_", [&] { empty({2, 2}).copy_(m); });
  refuses("index", [&] { m.index({m > 0}); });
  refuses("repeat_interleave", [&] { m.repeat_interleave(ones({2}, {DType::i64, kMeta}), 0); });
  refuses("one_hot", [&] { one_hot(zeros({3}, {DType::i64, kMeta})); });
  refuses("quantile", [&] { quantile(m, ones({2}, kMeta)); });
  const Tensor lengths = ones({2}, {DType::i64, kMeta});
  refuses("ctc_loss", [&] {
    ctc_loss(ones({3, 2, 4}, kMeta), ones({2, 1}, {DType::i64, kMeta}), lengths, lengths);
  });
  refuses("to_dlpack", [&] { to_dlpack(m); });
  CHECK(empty({0}, kMeta).data<float>() == nullptr);
  CHECK_THROWS_WITH(save_safetensors("never-written", {{"m", m}}),
                    ContainsSubstring("[save_safetensors] m is on meta"));
  CHECK_THROWS_AS(m + ones({2, 2}), DeviceError);
  CHECK_THROWS_WITH(m + ones({2, 2}), ContainsSubstring("operands are on meta and on cpu:0"));
  float memory = 0;
  CHECK_THROWS_AS(from_blob(&memory, {1}, kMeta), DeviceError);
}

TEST_CASE("the meta device has the graph, hooks and gradients of a real one") {
  const DeviceGuard guard("meta");
  const Tensor w = randn({4, 4}).set_requires_grad(), x = randn({3, 4});
  int calls = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  const Tensor y = relu(matmul(x, w)) * 2;
  CHECK(y.device() == kMeta);
  y.sum().backward();
  y.detach();
  CHECK(calls == 1);
  CHECK(w.grad().device() == kMeta);
  CHECK(w.grad().sizes() == w.sizes());
}
