#pragma once
// Compares layers with the records of a script in tests/golden: names and shapes of the state, outputs, the
// gradients of inputs and parameters, and buffers after the calls.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

namespace tapestry::test {

class RecordedLayers {
 public:
  using Call = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

  explicit RecordedLayers(const std::string& name) : golden_(name) {}

  /// Fills the module with the recorded weights, calls it `calls` times, and compares everything. Undefined
  /// outputs have no record.
  void check_layer(const std::string& label, nn::Module& module, const std::vector<Tensor>& inputs,
                   const Call& call, int calls = 1) {
    INFO(label);
    tested_.insert(label);
    fill(module);
    module.zero_grad();
    const auto names = golden_.under(label + "/state/");
    const nn::StateDict state = module.state_dict();
    REQUIRE(state.size() == names.size());
    for (std::size_t k = 0; k < names.size(); ++k) {
      CHECK(std::to_string(k) + "/" + state[k].first == names[k].first);
      const auto sizes = std::vector<double>(state[k].second.sizes().begin(), state[k].second.sizes().end());
      CHECK(sizes == names[k].second.values);
    }
    std::vector<Tensor> leaves;
    for (const Tensor& x : inputs) {
      leaves.push_back(x.clone());
      if (is_floating(x.dtype())) leaves.back().set_requires_grad();
    }
    std::vector<Tensor> outputs;
    for (int i = 0; i < calls; ++i) outputs = call(leaves);
    std::erase_if(outputs, [](const Tensor& y) { return !y.defined(); });
    REQUIRE(!outputs.empty());
    CHECK(golden_.under(label + "/output/").size() == outputs.size());
    Tensor loss;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      INFO("output " << k);
      CHECK(difference(outputs[k], golden_.at(label + "/output/" + std::to_string(k)), kTolerance) == "");
      const Tensor part = (outputs[k] * formula(outputs[k].sizes(), 100 + static_cast<int>(k))).sum();
      loss = loss.defined() ? loss + part : part;
    }
    if (loss.requires_grad()) loss.backward();
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      INFO("gradient of input " << k);
      const auto grads = golden_.under(label + "/input_grad/" + std::to_string(k));
      CHECK(leaves[k].grad().defined() == !grads.empty());
      if (!grads.empty()) CHECK(difference(leaves[k].grad(), grads[0].second, kTolerance) == "");
    }
    CHECK(golden_.under(label + "/grad/").size() == module.parameters().size());
    for (const auto& [name, p] : module.named_parameters()) {
      INFO("gradient of " << name);
      CHECK(difference(p->grad(), golden_.at(label + "/grad/" + name), kTolerance) == "");
    }
    CHECK(golden_.under(label + "/buffer/").size() == module.buffers().size());
    for (const auto& [name, b] : module.named_buffers()) {
      INFO("buffer " << name);
      CHECK(difference(b, golden_.at(label + "/buffer/" + name), kTolerance) == "");
    }
  }
  /// Compares a module of one input and one output.
  void check_module(const std::string& label, nn::Module& module, const Tensor& input, bool train = true,
                    int calls = 1) {
    module.train(train);
    check_layer(
        label, module, {input}, [&](const std::vector<Tensor>& in) { return std::vector{module(in[0])}; },
        calls);
  }

  std::size_t tested() const { return tested_.size(); }
  /// The recorded layers that check_layer() has not compared yet.
  std::string untested() const {
    std::set<std::string> left;
    for (const auto& [name, record] : golden_.under("")) {
      const std::string label = name.substr(0, name.find('/'));
      if (!tested_.contains(label)) left.insert(label);
    }
    std::string text;
    for (const std::string& label : left) text += label + " ";
    return text;
  }

 private:
  static constexpr double kTolerance = 1e-12;  // an f64 sum of a few hundred terms has a smaller error
  const NnGolden golden_;
  std::set<std::string> tested_;
};

}  // namespace tapestry::test
