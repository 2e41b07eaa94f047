// The real cuDNN, where it is installed. No GPU is needed: cuDNN makes operation graphs, asks its heuristics
// and makes plans for the properties of a GPU that are given as text (DEVICEPROP descriptors, cuDNN 9.8 and
// later). So these tests show which graphs cuDNN supports on an H100. They cannot show what a plan computes.
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_attention.h"
#include "tapestry/kernels/cuda/vendor/cudnn_conv.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tests/cudnn/real_library.h"
#include "tests/support/catch.h"

using namespace cudnn_test;
using namespace tapestry;
using namespace tapestry::kernels;
namespace cudnn = tapestry::kernels::cuda::cudnn;
namespace fs = std::filesystem;

namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (!text.empty() && text.back() == '_') text.pop_back();  // float_
  return text;
}

/// The number that the header gives a name; empty if it lacks the name.
std::string number_of(const std::string& header, const std::string& name) {
  for (std::size_t at = header.find(name); at != std::string::npos; at = header.find(name, at + 1)) {
    const auto is_name = [&](std::size_t i) {
      return std::isalnum(static_cast<unsigned char>(header[i])) || header[i] == '_';
    };
    if ((at > 0 && is_name(at - 1)) || is_name(at + name.size())) continue;
    // Between the name and the number there may be a macro that says that the name is deprecated.
    const std::size_t end = header.find_first_of("=,;*/", at);
    if (end == std::string::npos || header[end] != '=') continue;
    const std::size_t digits = header.find_first_not_of(" \n", end + 1);
    return header.substr(digits, header.find_first_not_of("0123456789", digits) - digits);
  }
  return {};
}

}  // namespace

TEST_CASE("the numbers of cudnn_api.h are those of the real cuDNN's header") {
  const RealLibrary real;
  if (!real.found()) return;
  const fs::path header = fs::path(real.path()).parent_path().parent_path() / "include" / "cudnn_graph.h";
  std::ifstream in(header);
  if (!in) {
    std::printf("skipped: there is no %s\n", header.c_str());
    return;
  }
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str();
  int checked = 0;
  const auto check = [&](const std::string& name, int number) {
    INFO(name);
    CHECK(number_of(all, name) == std::to_string(number));
    ++checked;
  };
#define TAPESTRY_CHECK(name, number, ...) check(prefix + upper(#name) + suffix, number);
  std::string prefix = "CUDNN_BACKEND_", suffix = "_DESCRIPTOR";
  TAPESTRY_CUDNN_KINDS(TAPESTRY_CHECK)
  prefix = "CUDNN_TYPE_", suffix = "";
  TAPESTRY_CUDNN_TYPES(TAPESTRY_CHECK)
  prefix = "CUDNN_ATTR_";
  TAPESTRY_CUDNN_ATTRIBUTES(TAPESTRY_CHECK)
  prefix = "CUDNN_DATA_";
  TAPESTRY_CUDNN_DATA_TYPES(TAPESTRY_CHECK)
  prefix = "CUDNN_POINTWISE_";
  TAPESTRY_CUDNN_POINTWISE_MODES(TAPESTRY_CHECK)
  prefix = "CUDNN_REDUCE_TENSOR_";
  TAPESTRY_CUDNN_REDUCTIONS(TAPESTRY_CHECK)
  prefix = "CUDNN_NUMERICAL_NOTE_";
  TAPESTRY_CUDNN_NUMERICAL_NOTES(TAPESTRY_CHECK)
  prefix = "CUDNN_HEUR_MODE_";
  TAPESTRY_CUDNN_HEURISTICS(TAPESTRY_CHECK)
#undef TAPESTRY_CHECK
  check("CUDNN_CROSS_CORRELATION", static_cast<int>(cudnn::ConvolutionMode::cross_correlation));
  check("CUDNN_STATUS_BAD_PARAM", 2000);
  check("CUDNN_STATUS_NOT_SUPPORTED", 3000);
  CHECK(checked > 100);
}

TEST_CASE("the real cuDNN has a plan for every convolution of ResNet-50 on an H100") {
  const RealLibrary real;
  if (!real.found()) return;
  const auto h100 = real.h100();
  if (!h100) return;
  // channels, height, filters, window, stride
  constexpr std::int64_t kLayers[][5] = {{3, 224, 64, 7, 2},   {64, 56, 64, 1, 1},   {64, 56, 64, 3, 1},
                                         {64, 56, 256, 1, 1},  {256, 56, 128, 1, 1}, {128, 56, 128, 3, 2},
                                         {256, 56, 512, 1, 2}, {512, 7, 512, 3, 1},  {2048, 7, 512, 1, 1}};
  int plans = 0;
  for (const auto& [c, h, k, r, stride] : kLayers)
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const bool last : {true, false}) {
        Conv2dShape s;
        s.n = 32, s.c = c, s.h = s.w = h, s.k = k, s.r = s.s = r, s.stride_h = s.stride_w = stride;
        s.padding_h = s.padding_w = r / 2, s.p = s.q = (h + 2 * (r / 2) - r) / stride + 1,
        s.channels_last = last;
        INFO(dtype_name(dtype) << " c " << c << " h " << h << " k " << k << " r " << r << " channels last "
                               << last);
        for (const cudnn::Direction direction : {cudnn::Direction::forward, cudnn::Direction::backward_data,
                                                 cudnn::Direction::backward_filter}) {
          cudnn::ConvCall call{direction, s, dtype, nullptr, nullptr, nullptr, nullptr};
          if (direction == cudnn::Direction::forward) call.bias = &call, call.shape.relu = true;
          const cudnn::EngineRules rules{.deterministic = c == 64,
                                         .tensor_cores = dtype != DType::f32 || c != 256};
          const cudnn::Plan plan({.handle = {}, .device = &*h100}, cudnn::conv_graph(call, 16), rules);
          CHECK(plan.workspace() >= 0);
          ++plans;
        }
      }
  std::printf("cuDNN %s made %d plans of convolutions for an H100\n", real.version().c_str(), plans);
}

TEST_CASE("the real cuDNN refuses what the stand-in refuses") {
  const RealLibrary real;
  if (!real.found()) return;
  const auto h100 = real.h100();
  if (!h100) return;
  Conv2dShape s;
  s.n = 1, s.c = 8, s.h = s.w = 8, s.k = 8, s.r = s.s = 3, s.p = s.q = 6;
  const cudnn::ConvCall good{cudnn::Direction::forward, s, DType::bf16, nullptr, nullptr, nullptr, nullptr};
  const auto refusal = [&](const cudnn::ConvCall& call) -> std::string {
    try {
      const cudnn::Plan plan({.handle = {}, .device = &*h100}, cudnn::conv_graph(call, 16), {});
      return {};
    } catch (const cudnn::CudnnError& e) {
      return e.refused() ? e.what() : concat({"not a refusal: ", e.what()});
    }
  };
  CHECK(refusal(good) == "");
  cudnn::ConvCall larger = good, empty = good;
  larger.shape.h = 12;  // y has not the size that follows from x
  CHECK_THAT(refusal(larger),
             ContainsSubstring("cudnnBackendFinalize(OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)"));
  empty.shape.n = 0;
  CHECK_THAT(refusal(empty), ContainsSubstring("CUDNN_STATUS_BAD_PARAM"));
}

TEST_CASE("the real cuDNN supports the graphs of attention on an H100") {
  const RealLibrary real;
  if (!real.found()) return;
  const auto h100 = real.h100();
  if (!h100) return;
  if (!real.has_driver()) return;
  // cuDNN compiles the kernel for the GPU, and then fails to load it into the driver, because there is no
  // GPU. That failure, and no other, says that it supports the graph.
  const auto outcome = [&](auto make_graph) -> std::string {
    try {
      const cudnn::Plan plan({.handle = {}, .device = &*h100}, make_graph(), {});
      return "";
    } catch (const cudnn::CudnnError& e) {
      const std::string what = e.what();
      return what.find("cuLibraryLoadData") == std::string::npos ? what : "";
    }
  };
  struct Case {
    DType dtype;
    AttentionShape s;
    std::int64_t offset;  // -1: not causal
    bool deterministic;
    std::int64_t mask_batch, mask_head, mask_query;  // strides of the mask; no mask if all are -1
  };
  const Case cases[] = {{DType::bf16, {2, 8, 2, 100, 1000, 128, 128}, 900, false, -1, -1, -1},
                        {DType::f16, {2, 12, 12, 256, 256, 72, 64}, -1, true, -1, -1, -1},
                        {DType::bf16, {2, 8, 2, 100, 1000, 128, 128}, 900, false, 1, 1, 1},
                        {DType::f16, {2, 12, 12, 256, 250, 64, 64}, -1, true, 0, 0, 1},
                        {DType::bf16, {2, 12, 12, 256, 256, 64, 64}, -1, false, 1, 0, 0}};
  for (const Case& c : cases) {
    INFO(dtype_name(c.dtype) << " heads " << c.s.heads << " groups " << c.s.groups << " width " << c.s.width
                             << " mask " << c.mask_batch << c.mask_head << c.mask_query);
    AttentionMask mask;
    mask.causal = c.offset >= 0, mask.offset = std::max<std::int64_t>(c.offset, 0);
    const bool some = true;
    if (c.mask_batch >= 0)
      mask.mask = &some, mask.batch = c.mask_batch, mask.head = c.mask_head, mask.query = c.mask_query;
    // (batch, rows, heads, width) in memory, as a layer's projections are
    const auto strides = [](std::int64_t heads, std::int64_t rows, std::int64_t width) {
      return AttentionStrides{rows * heads * width, width, heads * width};
    };
    const auto fill = [&](auto a) {
      a.shape = c.s, a.scale = 0.125, a.mask = mask;
      a.q_strides = strides(c.s.heads, c.s.queries, c.s.width),
      a.k_strides = strides(c.s.groups, c.s.keys, c.s.width);
      a.v_strides = strides(c.s.groups, c.s.keys, c.s.value_width);
      a.y_strides = strides(c.s.heads, c.s.queries, c.s.value_width);
      if constexpr (requires { a.dy_strides; })
        a.dy_strides = a.y_strides, a.dq_strides = a.q_strides, a.dk_strides = a.k_strides,
        a.dv_strides = a.v_strides;
      return a;
    };
    CHECK(outcome([&] { return cudnn::attention_graph(c.dtype, fill(AttentionArgs{}), 16); }) == "");
    CHECK(outcome([&] {
            return cudnn::attention_backward_graph(c.dtype, fill(AttentionBackwardArgs{}), 16,
                                                   c.deterministic);
          }) == "");
  }
}
