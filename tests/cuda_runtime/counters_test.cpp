// Counts what the library's main kernels do, as the PTX machine executes them on the stand-in runtime, and
// compares it with docs/reference/kernel-counters.tsv: no kernel may get worse than its row. These are
// counts, and no results of a GPU. The hidden test case "write the kernel counters" writes that file and the
// page beside it.
#include "tests/support/catch.h"

#if TAPESTRY_LIBRARY_HAS_CUDA
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "tapestry/core/kernel_policy.h"
#include "tapestry/core/version.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/counter_table.h"
#include "tapestry/tools/ptx/runtime/settings.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/device_code/device_code.h"
#include "tests/support/source.h"

namespace {

using ptx::KernelRow;

const char* const kColumns[] = {
    "work",           "kernel",          "launches",         "instructions", "lanes an instruction",
    "sectors a load", "sectors a store", "passes a request", "bytes needed", "moved / needed",
    "FMA %",          "integer %",       "memory %",         "registers",    "threads",
    "occupancy %",    "verdict"};
// The columns in which a larger number is worse, with the relative difference that is not. Instructions
// change a little with each version of nvcc.
const std::map<std::string, double> kWorse = {{"instructions", 0.05},    {"sectors a load", 0.01},
                                              {"sectors a store", 0.01}, {"passes a request", 0.01},
                                              {"moved / needed", 0.01},  {"registers", 0}};
using Row = std::map<std::string, std::string>;
const char* const kTable = "docs/reference/kernel-counters.tsv";

struct Work {
  std::string name;
  /// Makes the inputs on the device and returns what is counted.
  std::function<std::function<void()>()> make;
};

Tensor random(const Shape& shape, DType dtype = DType::f32) { return randn(shape).to(dtype).to(kFirst); }
Tensor indices(std::int64_t n, std::int64_t below) {
  Tensor t = empty({n}, DType::i64);
  for (std::int64_t i = 0; i < n; ++i) t.data<std::int64_t>()[i] = i * 7919 % below;
  return t.to(kFirst);
}

/// Counts y = f(inputs).
Work forward(const std::string& name, std::function<Tensor(const std::vector<Tensor>&)> f,
             std::function<std::vector<Tensor>()> inputs) {
  return {name, [=] {
            return [f, in = inputs()] {
              const NoGradGuard guard;
              f(in);
            };
          }};
}
/// Counts the backward pass of y = f(inputs).
Work backward(const std::string& name, std::function<Tensor(const std::vector<Tensor>&)> f,
              std::function<std::vector<Tensor>()> inputs) {
  return {name, [=] {
            std::vector<Tensor> in = inputs(), leaves;
            for (const Tensor& x : in)
              if (is_floating(x.dtype())) leaves.push_back(x.set_requires_grad());
            const Tensor y = f(in), dy = random(y.sizes(), y.dtype());
            return [=] { autograd::grad({y}, leaves, {dy}); };
          }};
}

std::vector<Work> works() {
  using V = const std::vector<Tensor>&;
  std::vector<Work> all;
  const auto one = [](const Shape& shape, DType dtype = DType::f32) {
    return [=] { return std::vector{random(shape, dtype)}; };
  };
  const auto two = [](const Shape& a, const Shape& b, DType dtype = DType::f32) {
    return [=] { return std::vector{random(a, dtype), random(b, dtype)}; };
  };
  // elementwise, copies
  all.push_back(forward(
      "add f32 65536", [](V t) { return t[0] + t[1]; }, two({65536}, {65536})));
  all.push_back(forward(
      "add bf16 65536", [](V t) { return t[0] + t[1]; }, two({65536}, {65536}, DType::bf16)));
  all.push_back(forward(
      "add a row f32 64 1000", [](V t) { return t[0] + t[1]; }, two({64, 1000}, {1000})));
  all.push_back(forward(
      "gelu f32 65536", [](V t) { return t[0].gelu(); }, one({65536})));
  all.push_back(forward(
      "gelu bf16 65536", [](V t) { return t[0].gelu(); }, one({65536}, DType::bf16)));
  all.push_back(forward(
      "transpose f32 256 256", [](V t) { return t[0].transpose(0, 1).contiguous(); }, one({256, 256})));
  all.push_back(forward(
      "cat f32 2 64 512", [](V t) { return cat(t, 1); }, two({64, 512}, {64, 512})));
  // reductions, softmax, losses
  all.push_back(forward(
      "sum f32 65536", [](V t) { return t[0].sum(); }, one({65536})));
  all.push_back(forward(
      "sum of rows f32 64 1000", [](V t) { return t[0].sum(1); }, one({64, 1000})));
  all.push_back(forward(
      "sum of columns f32 1000 64", [](V t) { return t[0].sum(0); }, one({1000, 64})));
  all.push_back(forward(
      "cumsum f32 64 1000", [](V t) { return t[0].cumsum(1); }, one({64, 1000})));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string d = dtype == DType::f32 ? " f32 " : " bf16 ";
    all.push_back(forward(
        "softmax" + d + "64 1024", [](V t) { return t[0].softmax(1); }, one({64, 1024}, dtype)));
    all.push_back(backward(
        "softmax backward" + d + "64 1024", [](V t) { return t[0].softmax(1); }, one({64, 1024}, dtype)));
    const auto norm = [=] {
      return std::vector{random({64, 1024}, dtype), random({1024}, dtype), random({1024}, dtype)};
    };
    const auto layer = [](V t) { return layer_norm(t[0], {1024}, t[1], t[2]); };
    all.push_back(forward("layer_norm" + d + "64 1024", layer, norm));
    all.push_back(backward("layer_norm backward" + d + "64 1024", layer, norm));
  }
  const auto loss = [](V t) { return cross_entropy(t[0], t[1]); };
  const auto logits = [] { return std::vector{random({64, 1000}), indices(64, 1000)}; };
  all.push_back(forward("cross_entropy f32 64 1000", loss, logits));
  all.push_back(backward("cross_entropy backward f32 64 1000", loss, logits));
  const auto images = [] { return std::vector{random({8, 16, 14, 14}), random({16}), random({16})}; };
  const auto batch = [](V t) { return batch_norm(t[0], {}, {}, t[1], t[2], true); };
  all.push_back(forward("batch_norm f32 8 16 14 14", batch, images));
  all.push_back(backward("batch_norm backward f32 8 16 14 14", batch, images));
  all.push_back(forward(
      "max_pool2d f32 8 16 14 14", [](V t) { return max_pool2d(t[0], {.kernel_size = 2}); },
      one({8, 16, 14, 14})));
  // products, convolution, attention
  const auto product = [](V t) { return linear(t[0], t[1]); };
  all.push_back(forward("linear f32 128 128 128", product, two({128, 128}, {128, 128})));
  all.push_back(forward("linear bf16 256 256 128", product, two({256, 128}, {256, 128}, DType::bf16)));
  all.push_back(backward("linear backward f32 128 128 128", product, two({128, 128}, {128, 128})));
  all.push_back(
      backward("linear backward bf16 256 256 128", product, two({256, 128}, {256, 128}, DType::bf16)));
  const auto convolution = [](V t) { return conv2d(t[0], t[1], {}, {.padding = 1}); };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string d = dtype == DType::f32 ? " f32 " : " bf16 ";
    const auto in = [=] {
      return std::vector{random({2, 14, 14, 32}, dtype).permute({0, 3, 1, 2}), random({32, 32, 3, 3}, dtype)};
    };
    all.push_back(forward("conv2d" + d + "2 32 14 14 32 3", convolution, in));
    all.push_back(backward("conv2d backward" + d + "2 32 14 14 32 3", convolution, in));
    const auto heads = [=] {
      return std::vector{random({1, 2, 128, 64}, dtype), random({1, 2, 128, 64}, dtype),
                         random({1, 2, 128, 64}, dtype)};
    };
    const auto attend = [](V t) {
      return scaled_dot_product_attention(t[0], t[1], t[2], {.is_causal = true});
    };
    all.push_back(forward("attention" + d + "1 2 128 64", attend, heads));
    all.push_back(backward("attention backward" + d + "1 2 128 64", attend, heads));
  }
  // embedding, optimizer
  const auto lookup = [](V t) { return embedding(t[0], t[1]); };
  const auto tokens = [] { return std::vector{random({500, 128}), indices(256, 500)}; };
  all.push_back(forward("embedding f32 500 128 256", lookup, tokens));
  all.push_back(backward("embedding backward f32 500 128 256", lookup, tokens));
  all.push_back({"adamw f32 2 16384", [] {
                   std::vector<nn::Parameter> parameters;
                   for (const char* const name : {"a", "b"}) {
                     parameters.emplace_back(name, random({16384}));
                     parameters.back()->set_grad(random({16384}));
                   }
                   const auto optimizer = std::make_shared<optim::AdamW>(parameters);
                   optimizer->step();  // makes the state
                   return [=] { optimizer->step(); };
                 }});
  return all;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

Row row_of(const std::string& work, const KernelRow& k) {
  const ptx::Counters& c = k.counters;
  const auto per = [](std::uint64_t requests, double value) { return requests == 0 ? "-" : fixed(value, 2); };
  const auto percent = [&](ptx::Pipe pipe) {
    return fixed(100.0 * static_cast<double>(c.warps_by_pipe[static_cast<std::size_t>(pipe)]) /
                     static_cast<double>(std::max<std::uint64_t>(1, c.warp_instructions)),
                 0);
  };
  const std::uint64_t requests =
      c.shared_loads.requests + c.shared_stores.requests + c.shared_atomics.requests;
  const std::uint64_t passes = c.shared_loads.passes + c.shared_stores.passes + c.shared_atomics.passes;
  const std::string name = ptx::short_name(k.kernel);
  return {{"work", work},
          {"kernel", name},
          {"launches", std::to_string(c.launches)},
          {"instructions", std::to_string(c.warp_instructions)},
          {"lanes an instruction", fixed(c.average_active_lanes(), 2)},
          {"sectors a load", per(c.loads.requests, c.loads.sectors_per_request())},
          {"sectors a store", per(c.stores.requests, c.stores.sectors_per_request())},
          {"passes a request", per(requests, static_cast<double>(passes) /
                                                 static_cast<double>(std::max<std::uint64_t>(1, requests)))},
          {"bytes needed", std::to_string(c.unique_read + c.unique_written)},
          {"moved / needed", fixed(c.moved_over_needed(), 2)},
          {"FMA %", percent(ptx::Pipe::kFma)},
          {"integer %", percent(ptx::Pipe::kAlu)},
          {"memory %", percent(ptx::Pipe::kMemory)},
          {"registers", k.registers == 0 ? "-" : std::to_string(k.registers)},
          {"threads", std::to_string(k.block)},
          {"occupancy %", fixed(100 * ptx::occupancy(k), 0)},
          {"verdict", ptx::verdict(k)}};
}

/// The rows of one work: one for each kernel, by name. Kernels whose names differ in template arguments only
/// are added up.
std::vector<Row> count(const Work& work, const std::vector<device_code::Kernel>& kernels) {
  const Gpus gpus(1, std::size_t{1} << 30);
  stand_in::Settings settings;
  settings.initialised = settings.races = false;  // tests/cuda_runtime checks
  settings.counters = "-";
  stand_in::execute(settings);
  const std::vector<KernelRow> counted = [&] {
    const auto run = work.make();
    synchronize(kFirst);
    stand_in::execute(settings);  // forgets what made the inputs
    run();
    synchronize(kFirst);
    return stand_in::counters();
  }();
  std::vector<Row> rows;
  for (KernelRow k : counted) {
    for (const device_code::Kernel& compiled : kernels)
      if (compiled.symbol == k.kernel && compiled.arch == 90)
        k.registers = static_cast<std::uint32_t>(compiled.registers);
    rows.push_back(row_of(work.name, k));
  }
  return rows;
}

std::vector<Row> count_all() {
  manual_seed(1);
  set_kernel_policy(KernelPolicy::custom);
  const std::vector<device_code::Kernel> kernels =
      device_code::read_kernels(device_code::file_of(reinterpret_cast<const void*>(&version)));
  std::vector<Row> rows;
  for (const Work& work : works())
    for (Row& row : count(work, kernels)) rows.push_back(std::move(row));
  return rows;
}

std::vector<Row> committed() {
  std::ifstream in(tests::source_path(kTable));
  std::vector<Row> rows;
  std::vector<std::string> head;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
    if (head.empty()) {
      head = fields;
      continue;
    }
    Row& row = rows.emplace_back();
    for (std::size_t i = 0; i < head.size() && i < fields.size(); ++i) row[head[i]] = fields[i];
  }
  return rows;
}

/// What is worse than in the committed row. `before` and `now` are rows of the same kernel.
std::vector<std::string> worse(const Row& before, const Row& now) {
  std::vector<std::string> found;
  for (const auto& [column, tolerance] : kWorse) {
    const std::string &a = before.at(column), &b = now.at(column);
    if (b == "-") continue;
    if (a == "-" || std::stod(b) > std::stod(a) * (1 + tolerance) + 0.005)
      found.push_back(now.at("work") + ", " + now.at("kernel") + ": " + column + " " + b + ", was " + a);
  }
  if (std::stod(now.at("lanes an instruction")) < std::stod(before.at("lanes an instruction")) * 0.99)
    found.push_back(now.at("work") + ", " + now.at("kernel") + ": fewer lanes an instruction, " +
                    now.at("lanes an instruction") + ", was " + before.at("lanes an instruction"));
  return found;
}

}  // namespace

TEST_CASE("no kernel counts worse than its row in the documentation") {
  std::map<std::pair<std::string, std::string>, std::vector<Row>> before;
  for (const Row& row : committed()) before[{row.at("work"), row.at("kernel")}].push_back(row);
  std::vector<std::string> found;
  std::map<std::pair<std::string, std::string>, std::size_t> seen;
  for (const Row& now : count_all()) {
    const auto key = std::pair(now.at("work"), now.at("kernel"));
    const std::size_t n = seen[key]++;
    if (n >= before[key].size()) {
      found.push_back(key.first + ", " + key.second + ": has no row");
      continue;
    }
    for (const std::string& text : worse(before[key][n], now)) found.push_back(text);
  }
  for (const auto& [key, rows] : before)
    if (seen[key] < rows.size()) found.push_back(key.first + ", " + key.second + ": was not launched");
  INFO("If this is intended, write the rows again: tests_cuda_runtime \"write the kernel counters\"");
  CHECK(found == std::vector<std::string>{});
}

TEST_CASE("a kernel that gets worse in any column is found") {
  const Row row = {{"work", "w"},
                   {"kernel", "k"},
                   {"instructions", "100"},
                   {"lanes an instruction", "32.00"},
                   {"sectors a load", "4.00"},
                   {"sectors a store", "-"},
                   {"passes a request", "1.00"},
                   {"moved / needed", "1.00"},
                   {"registers", "32"}};
  CHECK(worse(row, row).empty());
  for (const auto& [column, value] : Row{{"instructions", "106"},
                                         {"lanes an instruction", "31.00"},
                                         {"sectors a load", "4.10"},
                                         {"sectors a store", "4.00"},
                                         {"passes a request", "1.10"},
                                         {"moved / needed", "1.03"},
                                         {"registers", "33"}}) {
    Row now = row;
    now[column] = value;
    CHECK(worse(row, now).size() == 1);
  }
  Row better = row;
  better["sectors a load"] = "3.00";
  CHECK(worse(row, better).empty());
}

TEST_CASE("write the kernel counters", "[.]") {
  const std::vector<Row> rows = count_all();
  std::ofstream table(tests::source_path(kTable));
  table << "# Written by tests_cuda_runtime \"write the kernel counters\"; docs/reference/kernel-counters.md "
           "explains it.\n";
  for (const char* const column : kColumns) table << (column == kColumns[0] ? "" : "\t") << column;
  table << '\n';
  for (const Row& row : rows) {
    for (const char* const column : kColumns) table << (column == kColumns[0] ? "" : "\t") << row.at(column);
    table << '\n';
  }
  // The page has the same table between two marks.
  const std::string path = tests::source_path("docs/reference/kernel-counters.md");
  std::ifstream in(path);
  std::string page(std::istreambuf_iterator<char>(in), {});
  const std::string mark = "<!-- rows -->\n";
  const std::size_t begin = page.find(mark), end = page.rfind(mark);
  REQUIRE(begin != end);
  std::string text;
  for (const char* const column : kColumns) text += std::string("| ") + column + " ";
  text += "|\n";
  for (std::size_t i = 0; i < std::size(kColumns); ++i)
    text += i < 2 || i + 1 == std::size(kColumns) ? "|---" : "|---:";
  text += "|\n";
  for (const Row& row : rows) {
    for (const char* const column : kColumns)
      text += "| " + (std::string(column) == "kernel" ? "`" + row.at(column) + "`" : row.at(column)) + " ";
    text += "|\n";
  }
  page.replace(begin + mark.size(), end - begin - mark.size(), text);
  std::ofstream(path) << page;
}
#else
#include <cstdio>

TEST_CASE("without CUDA or with a static CUDA runtime, kernels are not counted") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
