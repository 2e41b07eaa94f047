// From files into modules.
#include <cstring>
#include <set>
#include <string>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/context.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/internal/conv1d.h"
#include "tapestry/nn/models/internal/experts.h"
#include "tapestry/nn/models/weights.h"

namespace tapestry::nn {
namespace {

constexpr const char* kOutputWeight = "lm_head.weight";

// The matrices that the file has in place of a parameter of GroupedExperts.
std::vector<detail::ExpertMatrix> matrices_in(const ModelWeights& weights, const std::string& name,
                                              const Shape& sizes) {
  if (weights.find(name)) return {};
  return detail::expert_matrices(name, sizes);
}

Tensor joined(const ModelWeights& weights, const std::vector<detail::ExpertMatrix>& matrices,
              const Shape& sizes) {
  const NoGradGuard no_grad;
  Tensor whole;
  for (const detail::ExpertMatrix& m : matrices) {
    const Tensor read = weights.read(m.name);
    if (!whole.defined()) whole = empty(sizes, {read.dtype(), kCPU});
    whole.select(0, m.expert).narrow(0, m.first, m.sizes[0]).copy_(read);
  }
  return whole;
}

}  // namespace

bool detail::is_copy_of_embedding(const ModelWeights& weights, const std::string& name) {
  if (name != kOutputWeight) return false;
  for (const char* const embedding : {"model.embed_tokens.weight", "transformer.wte.weight"}) {
    if (!weights.find(embedding)) continue;
    const Tensor a = weights.read(name).contiguous(), b = weights.read(embedding).contiguous();
    return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
           std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
  }
  return false;
}

LoadResult load_weights(Module& module, const ModelWeights& weights, bool strict) {
  LoadResult result;
  const bool gpt2 = dynamic_cast<const Gpt2*>(&module) != nullptr;
  std::string wrong;
  std::set<std::string> wanted, incomplete;
  const auto state = module.named_state();
  for (const auto& [name, slot] : state) {
    // Compares a tensor of the file with what the module needs of it.
    const auto expect = [&, &slot_name = name](const std::string& stored, const Shape& sizes) {
      wanted.insert(stored);
      const ModelWeights::Entry* entry = weights.find(stored);
      if (!entry && stored == kOutputWeight) {
        entry = weights.find("model.embed_tokens.weight");
        if (!entry) entry = weights.find("transformer.wte.weight");
      }
      if (entry && entry->sizes == sizes) return;
      if (entry) {
        wrong += concat({"\n  ", stored, " has the shape ", entry->sizes, ", but the module's is ", sizes});
      } else {
        result.missing.push_back(stored);
        incomplete.insert(slot_name);
      }
    };
    Shape sizes = whole_sizes(slot);
    if (gpt2 && is_conv1d(name)) sizes = {sizes[1], sizes[0]};
    const auto matrices = matrices_in(weights, name, sizes);
    if (matrices.empty()) expect(name, sizes);
    for (const detail::ExpertMatrix& m : matrices) expect(m.name, m.sizes);
  }
  for (const ModelWeights::Entry& entry : weights.entries())
    if (!wanted.count(entry.name) && !detail::is_copy_of_embedding(weights, entry.name))
      result.unexpected.push_back(entry.name);
  if (strict) {
    for (const std::string& name : result.missing) wrong += "\n  " + name + " is missing";
    for (const std::string& name : result.unexpected) wrong += "\n  " + name + " is unexpected";
  }
  check(wrong.empty(), "[load_weights] the weights do not fit to the module:", wrong,
        "\nBuild the module from the configuration of these weights.");
  for (const auto& [name, slot] : state) {
    if (incomplete.count(name)) continue;
    const auto matrices = matrices_in(weights, name, whole_sizes(slot));
    Tensor read = matrices.empty() ? weights.read(name) : joined(weights, matrices, whole_sizes(slot));
    if (gpt2 && is_conv1d(name)) read = read.t().contiguous();
    module.load_state_dict({{name, read}}, false);
  }
  return result;
}

}  // namespace tapestry::nn
