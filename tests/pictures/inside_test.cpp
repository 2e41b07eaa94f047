// Pictures of what is inside: the tape of an expression, the bits of dtypes, a model's shapes, and the tiles
// and banks of kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tapestry/autograd/node.h"
#include "tapestry/tapestry.h"
#include "tests/pictures/picture.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using pictures::colour, pictures::Picture;

TEST_CASE("picture: the tape of a small expression") {
  const Tensor x = tensor({2.0, 3.0}).set_requires_grad(), w = tensor({5.0, 7.0}).set_requires_grad();
  const Tensor h = x * w, y = h.relu() + h, loss = y.sum();
  using autograd::Node;
  std::vector<const Node*> nodes{autograd::record_of(loss)->fn.get()};  // from the loss to the leaves
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::uint32_t e = 0; e < nodes[i]->num_inputs(); ++e) {
      const Node* const to = nodes[i]->edge(e).node.get();
      if (to != nullptr && std::find(nodes.begin(), nodes.end(), to) == nodes.end()) nodes.push_back(to);
    }
  std::vector<const Node*> recorded, ran;
  for (const Node* n : nodes)
    if (!n->is_leaf()) recorded.push_back(n);
  std::sort(recorded.begin(), recorded.end(),
            [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
  std::vector<HookHandle> hooks;
  for (const Node* n : nodes)
    hooks.push_back(
        const_cast<Node*>(n)->add_hook(0, [&ran, n](const Tensor& g) { return ran.push_back(n), g; }));
  loss.backward();
  REQUIRE(ran.size() == nodes.size());

  struct Place {
    double x, y;
  };
  const auto number_in = [](const std::vector<const Node*>& list, const Node* n) {
    const auto found = std::find(list.begin(), list.end(), n);
    return found == list.end() ? std::string("-") : std::to_string(found - list.begin() + 1);
  };
  const auto name_of = [&](const Node* n) -> std::string {
    return n == autograd::record_of(x)->fn.get()   ? "x"
           : n == autograd::record_of(w)->fn.get() ? "w"
                                                   : n->name();
  };
  const std::map<std::string, Place> places{{"x", {60, 60}},     {"w", {180, 60}},    {"mul", {120, 130}},
                                            {"relu", {60, 200}}, {"add", {120, 270}}, {"sum", {120, 340}}};
  Picture p;
  p.middle(352, 24, "recorded", "s");
  p.middle(430, 24, "run", "s");
  for (const Node* n : nodes) {
    REQUIRE(places.contains(name_of(n)));
    const Place at = places.at(name_of(n));
    for (std::uint32_t e = 0; e < n->num_inputs(); ++e) {
      const Place to = places.at(name_of(n->edge(e).node.get()));
      const double dy = to.y - at.y, dx = (to.x - at.x) / dy;
      p.arrow(at.x - 18 * dx, at.y - 18, to.x + 18 * dx, to.y + 18);
    }
    p.box(at.x - 42, at.y - 16, 84, 32, n->is_leaf() ? "c2" : "c0", name_of(n));
    const double row = at.y + (!n->is_leaf() ? 5 : name_of(n) == "x" ? -6 : 16);
    p.text(268, row, name_of(n));
    p.middle(352, row, number_in(recorded, n));
    p.middle(430, row, number_in(ran, n), "b");
  }
  p.compare(
      "tape", 368,
      "The nodes of (relu(x w) + x w).sum(), with edges from each operation to those that made its inputs; "
      "backward runs sum, add, relu, mul, and then the leaves");
}

namespace {

// Lists the folders with sources inside a folder of the source tree, in lines of at most `most` letters.
// Leaves out private folders.
std::vector<std::string> lines_of_folders(const std::string& folder, std::size_t most) {
  std::vector<std::string> names, lines;
  for (const auto& file : std::filesystem::recursive_directory_iterator(tests::source_path(folder))) {
    const std::filesystem::path parent = file.path().parent_path();
    const std::string name = parent.filename(), ending = file.path().extension();
    if (parent.parent_path() == tests::source_path(folder) && name != "internal" &&
        (ending == ".h" || ending == ".cpp") && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    if (!lines.empty() && lines.back().size() + 2 + name.size() <= most) lines.back() += ", " + name;
    else lines.push_back(name);
  return lines;
}

}  // namespace

TEST_CASE("picture: the layers of the source tree") {
  Picture p;
  double y = 8, beside = 0;
  const auto layer = [&](const std::string& folder, const std::string& what, const std::string& classes,
                         bool narrow) {
    const auto lines = lines_of_folders(folder, narrow ? 36 : 54);
    const double height = 32 + 20 * static_cast<double>(lines.size());
    p.box(4, y, narrow ? 336 : 472, height, classes);
    p.text(16, y + 22, folder, "b");
    p.text(112, y + 22, what);
    for (std::size_t i = 0; i < lines.size(); ++i)
      p.text(16, y + 44 + 20 * static_cast<double>(i), lines[i], "s");
    y += height + 8;
  };
  layer("apps", "programs to copy", "c3", false);
  layer("distributed", "the ways of training on many devices", "c1", false);
  beside = y;
  layer("nn", "modules, losses, optimizers", "c0", true);
  layer("autograd", "operations, the tape", "c0", true);
  layer("kernels", "arithmetic on memory", "c0", true);
  p.box(348, beside, 128, y - 8 - beside, "c2");
  p.text(360, beside + 22, "data", "b");
  double line = beside + 44;
  for (const std::string& text : lines_of_folders("data", 12)) p.text(360, line, text, "s"), line += 20;
  layer("core", "tensors, devices, streams, threads, errors", "grey", false);
  p.text(4, y + 12, "A folder includes nothing from above or beside it.", "s");
  p.compare("architecture", y + 24,
            "The layers of the source tree, from apps over distributed, nn, autograd and kernels down to "
            "core, with "
            "data beside, which needs core alone");
}

TEST_CASE("picture: the bits of floating-point dtypes") {
  Picture p;
  double y = 0;
  const std::pair<DType, const char*> dtypes[] = {
      {DType::f32, "f32"}, {DType::bf16, "bf16"}, {DType::f16, "f16"}};
  for (const auto& [dtype, name] : dtypes) {
    const auto holds = [dtype = dtype](double value) {
      return full({}, value, DType::f64).to(dtype).to(DType::f64).item() == value;
    };
    int mantissa = 0, largest = 0;
    while (holds(1 + std::ldexp(1.0, -mantissa - 1))) ++mantissa;
    while (std::isfinite(full({}, std::ldexp(1.0, largest + 1), DType::f64).to(dtype).to(DType::f64).item()))
      ++largest;
    int exponent = 1;
    while ((1 << (exponent - 1)) < largest + 1) ++exponent;
    CHECK(static_cast<std::size_t>(8 * dtype_size(dtype)) ==
          static_cast<std::size_t>(1 + exponent + mantissa));
    char most[64];
    std::snprintf(most, sizeof most, "largest %.5g, next to 1 is 1 + 1/%lld",
                  std::ldexp(2 - std::ldexp(1.0, -mantissa), largest), 1LL << mantissa);
    p.text(4, y + 20, name, "b");
    p.text(60, y + 20, most);
    for (int b = 0; b < 1 + exponent + mantissa; ++b)
      p.box(4 + 14.5 * b, y + 30, 14.5, 26, b == 0 ? "grey" : b <= exponent ? "c0" : "c3");
    y += 72;
  }
  p.box(4, y, 62, 26, "grey", "sign");
  p.box(74, y, 172, 26, "c0", "exponent: the range");
  p.box(254, y, 178, 26, "c3", "mantissa: the digits");
  p.compare(
      "bits", y + 36,
      "The bits of f32, bf16 and f16: bf16 has the exponent of f32 and 7 bits of mantissa, f16 has 5 bits of "
      "exponent and 10 of mantissa");
}

TEST_CASE("picture: a model's modules, parameters and shapes") {
  struct Net : nn::Module {
    nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 2, .out_features = 16});
    nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 16, .out_features = 2});
    Tensor forward(const Tensor& x) override { return fc2(fc1(x).tanh()); }
  };
  Net net;
  Picture p;
  double y = 14;
  const auto tensor_box = [&](const std::string& name, const Shape& sizes) {
    p.box(20, y, 190, 30, "grey", name + " " + sizes.str());
    y += 30;
  };
  const auto module_box = [&](nn::Module& module) {
    const auto parameters = module.named_parameters();
    const double height = 16 + 22 * static_cast<double>(parameters.size() + 1);
    p.arrow(115, y + 2, 115, y + 24);
    y += 26;
    p.box(20, y, 440, height, "c0");
    p.text(32, y + 24, module.path() + "  " + module.type_name(), "b");
    double line = y + 46;
    for (const auto& [name, parameter] : parameters) {
      p.text(52, line,
             module.path() + "." + name + " " + parameter.sizes().str() + ", " +
                 std::to_string(parameter.numel()) + " numbers");
      line += 22;
    }
    y += height;
    p.arrow(115, y + 2, 115, y + 24);
    y += 26;
  };
  std::vector<HookHandle> hooks;
  for (nn::Module* const module : net.children())
    hooks.push_back(module->register_forward_hook(
        [&](nn::Module& m, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
          tensor_box(&m == &net.fc1 ? "x" : "after tanh", in[0].sizes());
          module_box(m);
          tensor_box(&m == &net.fc1 ? "fc1(x)" : "net(x)", out[0].sizes());
          if (&m == &net.fc1) {
            p.arrow(115, y + 2, 115, y + 24);
            y += 26;
          }
        }));
  net(ones({256, 2}));
  p.compare(
      "model", y + 10,
      "What flows through the model: 256 points of 2 numbers, 16 after fc1 and tanh, 2 after fc2, and the "
      "parameters of both layers");
}

namespace {

// A number in the source of a kernel that a picture shows. The picture is out of date if the code is gone.
int number_in_source(const std::string& path, const std::string& pattern) {
  const std::string source = tests::read_file(tests::source_path(path));
  std::smatch found;
  INFO(path << " no longer has " << pattern);
  REQUIRE(std::regex_search(source, found, std::regex(pattern)));
  return std::stoi(found[1]);
}

}  // namespace

TEST_CASE("picture: the tiles of a product") {
  const std::string path = "docs/tutorials/from-naive-to-fast/linear.cuh";
  const int depth = number_in_source(path, "constexpr int kDepth = (\\d+);");
  const int row_gap = number_in_source(path, "int row_at\\(int i\\) \\{ return i % 4 \\+ i / 4 \\* (\\d+);");
  const int column_gap =
      number_in_source(path, "int column_at\\(int j\\) \\{ return j % 4 \\+ j / 4 \\* (\\d+);");
  const int rows = number_in_source(
      path, "int row = static_cast<int>\\(blockIdx.y\\) \\* (\\d+), column = .* \\* 128;\n  ThreadTile");
  const int columns = number_in_source(
      path, "blockIdx.y\\) \\* 64, column = static_cast<int>\\(blockIdx.x\\) \\* (\\d+);\n  ThreadTile");
  CHECK(2 * row_gap == rows);
  CHECK(2 * column_gap == columns);
  const int thread = 53, row = thread / 16 * 4, column = thread % 16 * 4;  // as ThreadTile's constructor

  Picture p;
  constexpr double kScale = 2.9, kLeft = 96, kTop = 86;
  const auto px = [](int c) { return kLeft + kScale * c; };
  const auto py = [](int r) { return kTop + kScale * r; };
  p.middle(px(columns / 2), 20,
           "w: " + std::to_string(depth) + " of k, " + std::to_string(columns) + " columns", "b");
  p.box(px(0), 30, kScale * columns, kScale * depth, "none");
  p.box(kLeft - 10 - kScale * depth, kTop, kScale * depth, kScale * rows, "none");
  p.text(4, kTop + kScale * rows + 20, "x: " + std::to_string(rows) + " rows", "b");
  p.box(px(0), kTop, kScale * columns, kScale * rows, "none");
  for (int part = 0; part < 2; ++part) {
    p.box(px(column + part * column_gap), 30, kScale * 4, kScale * depth, "c0");
    p.box(kLeft - 10 - kScale * depth, py(row + part * row_gap), kScale * depth, kScale * 4, "c3");
    for (int other = 0; other < 2; ++other)
      p.box(px(column + part * column_gap), py(row + other * row_gap), kScale * 4, kScale * 4, "c2");
  }
  p.middle(px(columns / 2), kTop + kScale * rows + 20,
           "y: " + std::to_string(rows) + " x " + std::to_string(columns), "b");
  p.text(4, kTop + kScale * rows + 44,
         "Thread " + std::to_string(thread) + " computes the green numbers of y. In each", "s");
  p.text(4, kTop + kScale * rows + 64, "step along k it reads 8 of x and 8 of w, for 64 FMAs.", "s");
  p.compare("tiles", kTop + kScale * rows + 76,
            "The tile of y that a block computes, and the 64 elements of one thread in it: they need 8 "
            "elements of x "
            "and 8 of w in each step along k");
}

TEST_CASE("picture: the banks of a column of a tile") {
  const int pitch =
      number_in_source("docs/tutorials/from-naive-to-fast/linear.cuh", "float w_tile\\[32\\]\\[(\\d+)\\];");
  CHECK(number_in_source("kernels/cuda/copy_transposed.cuh", "kTransposeTile = (\\d+)") == 32);
  constexpr int kBanks = 32, kLanes = 32, kShown = 8;
  Picture p;
  double y = 0;
  for (const int words : {32, pitch}) {
    std::array<int, kBanks> lanes{};
    for (int lane = 0; lane < kLanes; ++lane) ++lanes[static_cast<std::size_t>(lane * words % kBanks)];
    const int passes = *std::max_element(lanes.begin(), lanes.end());
    p.text(4, y + 20,
           "rows of " + std::to_string(words) + " words: " + std::to_string(passes) +
               (passes == 1 ? " pass" : " passes"),
           "b");
    const double width = 14.75, height = 18;
    p.grid(4, y + 30, kBanks, kShown, width, height);
    for (int word = 0; word < kShown * kBanks; ++word) {
      const double x = 4 + width * (word % kBanks), top = y + 30 + height * (word / kBanks);
      if (word % words == 0) p.box(x, top, width, height, "c1", std::to_string(word / words));
      else if (word % words >= 32) p.box(x, top, width, height, "grey");
    }
    y += 192;
  }
  p.text(4, y + 12, "32 banks from left to right. Red: what the first", "s");
  p.text(4, y + 32, "lanes of a warp read of a column. Grey: padding.", "s");
  p.compare("banks", y + 44,
            "Where a column of a tile lies in the 32 banks of shared memory: with rows of 32 words in one "
            "bank, with "
            "rows of 33 words in a bank for each lane");
}
