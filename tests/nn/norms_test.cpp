// Normalisation layers, parametrizations and containers of parameters, compared with PyTorch's
// (tests/golden/nn_norms.py): names and shapes of the state, outputs, gradients, and buffers after the calls.
#include <memory>

#include "tests/nn/recorded_layer.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

RecordedLayers& recorded() {
  static RecordedLayers layers("norms");
  return layers;
}
template <class T>
void check_layer(const std::string& label, const typename T::Options& options, const Tensor& input,
                 bool train = true, int calls = 1) {
  T layer(options);
  recorded().check_module(label, layer, input, train, calls);
}

Tensor x() { return formula({4, 5}, 50); }
Tensor line() { return formula({3, 4, 5}, 54); }
Tensor image() { return formula({2, 4, 5, 6}, 51, 2.0); }
Tensor volume() { return formula({2, 4, 3, 2, 3}, 55, 2.0); }

nn::Linear::Options small() { return {.in_features = 5, .out_features = 3}; }

template <class T>
void check_instance(int dims, const Tensor& in, const std::string& mode, bool train) {
  const std::string label = "instance" + std::to_string(dims) + "d_";
  check_layer<T>(label + mode, {.num_features = 4}, in, train);
  check_layer<T>(label + "track_" + mode,
                 {.num_features = 4, .momentum = 0.3, .affine = true, .track_running_stats = true}, in, train,
                 2);
  check_layer<T>(label + "unbatched_" + mode, {.num_features = 4, .eps = 1e-3, .affine = true}, in[0], train);
}

}  // namespace

TEST_CASE("normalisation layers of every kind give PyTorch's outputs, gradients and statistics") {
  check_layer<nn::RMSNorm>("rms", {.normalized_shape = 5}, x());
  check_layer<nn::RMSNorm>("rms_eps", {.normalized_shape = {5, 6}, .eps = 1e-3}, image());
  check_layer<nn::RMSNorm>("rms_no_affine", {.normalized_shape = 5, .elementwise_affine = false}, x());
  check_layer<nn::GroupNorm>("group", {.num_groups = 2, .num_channels = 4}, image());
  check_layer<nn::GroupNorm>("group_one", {.num_groups = 1, .num_channels = 4, .eps = 1e-3}, line());
  check_layer<nn::GroupNorm>("group_no_affine", {.num_groups = 4, .num_channels = 4, .affine = false},
                             volume());
  check_layer<nn::LocalResponseNorm>("lrn_line", {.size = 2, .alpha = 0.5, .k = 2}, line());
  check_layer<nn::LocalResponseNorm>("lrn_image", {.size = 3, .alpha = 0.3, .beta = 0.5}, image());
  check_layer<nn::LocalResponseNorm>("lrn_volume", {.size = 11, .alpha = 2}, volume());
  for (const bool train : {true, false}) {
    const std::string m = train ? "train" : "eval";
    check_layer<nn::BatchNorm3d>("bn3d_" + m, {.num_features = 4}, volume(), train, 2);
    check_instance<nn::InstanceNorm1d>(1, line(), m, train);
    check_instance<nn::InstanceNorm2d>(2, image(), m, train);
    check_instance<nn::InstanceNorm3d>(3, volume(), m, train);
  }
}

TEST_CASE("spectral_norm and weight_norm give PyTorch's names, outputs, gradients and singular vectors") {
  for (const bool train : {true, false}) {
    const std::string m = train ? "train" : "eval";
    nn::Linear linear(small()), bias(small()), twice(small());
    nn::weight_norm(twice);
    recorded().check_module("weight_then_spectral_" + m, nn::spectral_norm(twice), x(), train, 2);
    recorded().check_module("spectral_linear_" + m, nn::spectral_norm(linear), x(), train, 2);
    recorded().check_module("spectral_bias_" + m, nn::spectral_norm(bias, "bias"), x(), train);
    nn::Conv2d conv(
        nn::Conv2d::Options{.in_channels = 4, .out_channels = 3, .kernel_size = 2, .bias = false});
    recorded().check_module("spectral_conv_" + m,
                            nn::spectral_norm(conv, "weight", {.n_power_iterations = 3}), image(), train);
    nn::Conv2d by_input(nn::Conv2d::Options{.in_channels = 4, .out_channels = 3, .kernel_size = 2});
    recorded().check_module("spectral_dim_" + m,
                            nn::spectral_norm(by_input, "weight", {.eps = 1e-6, .dim = 1}), image(), train);
  }
  nn::Linear linear(small()), whole(small()), bias(small()), both(small());
  recorded().check_module("weight_linear", nn::weight_norm(linear), x(), true, 2);
  recorded().check_module("weight_whole", nn::weight_norm(whole, "weight", {}), x());
  recorded().check_module("weight_bias", nn::weight_norm(bias, "bias"), x());
  nn::spectral_norm(both);
  recorded().check_module("weight_both", nn::weight_norm(both, "bias"), x());
  nn::Conv2d conv(nn::Conv2d::Options{.in_channels = 4, .out_channels = 3, .kernel_size = 2}),
      by_input(nn::Conv2d::Options{.in_channels = 4, .out_channels = 3, .kernel_size = 2});
  recorded().check_module("weight_conv", nn::weight_norm(conv), image());
  recorded().check_module("weight_dim", nn::weight_norm(by_input, "weight", 1), image());
}

namespace {
struct Lists : nn::Module {
  nn::ModuleDict& heads = add<nn::ModuleDict>("heads");
  nn::ParameterList& shifts = add<nn::ParameterList>("shifts", std::vector{zeros({4}), zeros({1})});
  nn::ParameterDict& scales = add<nn::ParameterDict>("scales");
  Lists() {
    heads.insert<nn::Linear>("wide", {.in_features = 5, .out_features = 4});
    heads.insert<nn::Linear>("deep", {.in_features = 5, .out_features = 4, .bias = false});
    scales.insert("deep", zeros({1}));  // PyTorch sorts the keys of a dict
    scales.insert("wide", zeros({4}));
  }
  Tensor forward(const Tensor& in) override {
    Tensor y;
    for (const auto& [name, head] : heads) {
      const Tensor part = scales[name] * (*head)(in);
      y = y.defined() ? y + part : part;
    }
    for (nn::Parameter* shift : shifts) y = y + *shift;
    return y;
  }
};
}  // namespace

TEST_CASE("ModuleDict, ParameterList and ParameterDict give PyTorch's names, outputs and gradients") {
  Lists lists;
  recorded().check_module("lists", lists, x());
}

TEST_CASE("all recorded normalisations and containers are tested") {
  // This test runs after all others in this file. It is skipped if only some of them were selected.
  if (recorded().tested() < 10) return;
  CHECK(recorded().untested() == "");
}

TEST_CASE("ModuleDict keeps its order, finds modules by name, and refuses what it cannot hold") {
  nn::ModuleDict dict;
  CHECK(dict.empty());
  nn::Linear& z = dict.insert<nn::Linear>("z", {.in_features = 2, .out_features = 3});
  dict.insert<nn::ReLU>("a");
  dict.insert("own", std::make_unique<nn::Identity>());
  CHECK(dict.size() == 3);
  CHECK(dict.keys() == std::vector<std::string>{"z", "a", "own"});
  CHECK(&dict["z"] == &z);
  CHECK(&dict.get<nn::Linear>("z") == &z);
  CHECK(dict.contains("a"));
  CHECK_FALSE(dict.contains("b"));
  CHECK(dict["z"](zeros({1, 2})).sizes() == Shape{1, 3});
  CHECK_THROWS_AS(dict["b"], IndexError);
  CHECK_THROWS_WITH(dict["b"], ContainsSubstring("there is no module 'b'; there are: z, a, own"));
  CHECK_THROWS_AS(dict.get<nn::Conv2d>("z"), TypeError);
  CHECK_THROWS_WITH(dict.insert<nn::ReLU>("z"), ContainsSubstring("already has a 'z'"));
  CHECK_THROWS_WITH(dict.insert<nn::ReLU>("a.b"), ContainsSubstring("cannot be a name"));
  CHECK_THROWS_WITH(dict.insert("null", std::shared_ptr<nn::ReLU>()), ContainsSubstring("is null"));
  CHECK(dict.size() == 3);
  CHECK(dict.children().size() == 3);
  dict.eval();
  CHECK_FALSE(z.is_training());
}

TEST_CASE("ParameterList and ParameterDict find parameters, share slots, and refuse what they cannot hold") {
  nn::ParameterList list({zeros({2}), zeros({3})});
  nn::Parameter& last = list.append(ones({4}));
  CHECK(list.size() == 3);
  CHECK(list[-1].is_same(last));
  CHECK(list[0]->sizes() == Shape{2});
  CHECK(list[2]->requires_grad());
  CHECK(list.str() == "ParameterList(0: [2], 1: [3], 2: [4])");
  CHECK_THROWS_AS(list[3], IndexError);
  CHECK_THROWS_AS(list[-4], IndexError);
  CHECK_THROWS_WITH(list.append(Tensor()), ContainsSubstring("undefined"));
  CHECK_THROWS_WITH(list.append(nn::Parameter()), ContainsSubstring("no slot"));
  CHECK_THROWS_WITH(list.extend({zeros({1}), Tensor()}), ContainsSubstring("undefined"));
  CHECK(list.size() == 3);

  nn::ParameterDict dict;
  dict.insert("w", zeros({2, 3}));
  dict.insert("tied", list[0]);
  CHECK(dict["tied"].is_same(list[0]));
  CHECK(dict.keys() == std::vector<std::string>{"w", "tied"});
  CHECK(dict.contains("w"));
  CHECK(dict.str() == "ParameterDict(w: [2, 3], tied: [2])");
  CHECK_THROWS_AS(dict["v"], IndexError);
  CHECK_THROWS_WITH(dict.insert("w", zeros({1})), ContainsSubstring("already has a 'w'"));
  CHECK_THROWS_WITH(dict.insert("v", Tensor()), ContainsSubstring("undefined"));
  CHECK(dict.size() == 2);
}

TEST_CASE("normalisation layers refuse inputs that do not fit and options that are out of range") {
  nn::GroupNorm group({.num_groups = 2, .num_channels = 4});
  CHECK_THROWS_WITH(group(zeros({2, 3})), ContainsSubstring("expected an input of shape (N, 4, ...)"));
  CHECK_THROWS_WITH(group(Tensor()), ContainsSubstring("undefined"));
  nn::InstanceNorm2d instance(nn::InstanceNorm2d::Options{.num_features = 4});
  for (const Shape& sizes : {Shape{4, 3}, Shape{2, 3, 5, 5}, Shape{2, 4, 5, 5, 5}, Shape{2, 5, 5}})
    CHECK_THROWS_WITH(instance(zeros(sizes)), ContainsSubstring("(N, 4, H, W) or (4, H, W)"));
  nn::BatchNorm3d batch(nn::BatchNorm3d::Options{.num_features = 4});
  CHECK_THROWS_WITH(batch(zeros({2, 4, 3, 3})), ContainsSubstring("(N, 4, D, H, W)"));
  using Group = nn::GroupNorm::Options;
  CHECK_THROWS_WITH(nn::GroupNorm(Group{.num_groups = 3, .num_channels = 4}),
                    ContainsSubstring("num_groups 3 does not divide num_channels 4"));
  CHECK_THROWS_WITH(nn::GroupNorm(Group{.num_channels = 4}), ContainsSubstring("must be positive"));
  CHECK_THROWS_WITH(nn::GroupNorm(Group{.num_groups = 1}), ContainsSubstring("must be positive"));
  CHECK_THROWS_WITH(nn::GroupNorm(Group{.num_groups = 1, .num_channels = 1, .eps = -1}),
                    ContainsSubstring("eps must not be negative"));
  CHECK_THROWS_WITH(nn::RMSNorm(nn::RMSNorm::Options{}), ContainsSubstring("normalized_shape is empty"));
  CHECK_THROWS_WITH(nn::RMSNorm(nn::RMSNorm::Options{.normalized_shape = {2, 0}}),
                    ContainsSubstring("normalized_shape must be positive"));
  CHECK_THROWS_WITH(nn::RMSNorm(nn::RMSNorm::Options{.normalized_shape = 2, .eps = -1.0}),
                    ContainsSubstring("eps must not be negative"));
  CHECK_THROWS_WITH(nn::InstanceNorm1d(nn::InstanceNorm1d::Options{}),
                    ContainsSubstring("[InstanceNorm1d] num_features must be positive"));
  CHECK(nn::RMSNorm(nn::RMSNorm::Options{.normalized_shape = 3}).str() ==
        "RMSNorm(normalized_shape=[3], eps=none, elementwise_affine=true)");
  CHECK(instance.str() ==
        "InstanceNorm2d(num_features=4, eps=1e-05, momentum=0.1, affine=false, track_running_stats=false)");
}

TEST_CASE("parameters_to_vector is differentiable, and vector_to_parameters writes all or nothing") {
  nn::Linear net(nn::Linear::Options{.in_features = 2, .out_features = 3});
  const Tensor flat = nn::parameters_to_vector(net.parameters());
  CHECK(flat.sizes() == Shape{9});
  CHECK(equal(flat.slice(0, 0, 6), net.weight->reshape({6})));
  (flat * arange(9).to(DType::f32)).sum().backward();
  CHECK(values_of(net.bias->grad()) == std::vector<double>{6, 7, 8});

  const Tensor before = flat.detach().clone();
  for (const Shape& sizes : {Shape{8}, Shape{10}, Shape{3, 3}})
    CHECK_THROWS_WITH(nn::vector_to_parameters(zeros(sizes), net.parameters()),
                      ContainsSubstring("the parameters have 9 elements"));
  CHECK(equal(nn::parameters_to_vector(net.parameters()), before));
  nn::vector_to_parameters(before * 2, net.parameters());
  CHECK(equal(nn::parameters_to_vector(net.parameters()), before * 2));
  CHECK(net.weight->requires_grad());
  CHECK(net.weight->is_leaf());
  CHECK_THROWS_WITH(nn::parameters_to_vector({}), ContainsSubstring("there are no parameters"));
}
