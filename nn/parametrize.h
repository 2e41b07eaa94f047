#pragma once
// Parametrizations: a parameter that is computed from other parameters, which are trained in its place.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Computes a parameter from one or more trained tensors, its originals. Derive from it for a parametrization
/// of your own. It is a module: buffers that compute() keeps are saved, and train() and eval() reach it.
class Parametrization : public Module {
 public:
  /// Returns the parameter. Called in each forward of the module, with gradients.
  virtual Tensor compute(const std::vector<Tensor>& originals) = 0;
  /// Returns originals of which compute() makes `value`, or a parameter near it. By default this is the value
  /// itself.
  virtual std::vector<Tensor> right_inverse(const Tensor& value) { return {value}; }
};

/// Replaces the parameter `name` of a module by one that `parametrization` computes, as PyTorch's
/// torch.nn.utils.parametrize.register_parametrization does. The originals become parameters with PyTorch's
/// names: `parametrizations.weight.original`, or `original0`, `original1`, ... if there are several. Buffers
/// of the parametrization are named `parametrizations.weight.0.<buffer>`. parameters() and state_dict()
/// contain the originals, and not the computed parameter.
///
/// The module computes the parameter once per call, before forward(). Between calls, `module.weight` computes
/// it on each read. So load_state_dict(), optimizers, replicas and DDP work with the originals alone. An
/// original that right_inverse() returns unchanged stays the slot that it was, so optimizers that have it
/// stay valid. Another module that shares the parameter keeps the original.
///
/// A parameter may have several parametrizations. Each further one gets the tensor that the one before it
/// computes, as its only original, and its buffers are named `parametrizations.weight.1.<buffer>` and so on.
/// The originals stay as they are, so the value of the parameter changes to what the new one computes of it.
///
/// Throws ValueError, and changes nothing, if there is no such parameter, if it has several replicas, if
/// compute() gives a tensor of another shape, dtype or device, or if a further parametrization has several
/// originals.
void register_parametrization(Module& module, const std::string& name,
                              std::shared_ptr<Parametrization> parametrization);

/// True if the parameter has a parametrization.
bool is_parametrized(const Module& module, const std::string& name = "weight");

/// Ends all parametrizations of the parameter. It keeps the value that it has now, as a parameter of its own.
/// With a single original and leave_parametrized = false, the original becomes the parameter. A single
/// original stays the slot that it was. Throws ValueError if the parameter has no parametrization, or if
/// leave_parametrized is false and there are several originals.
void remove_parametrizations(Module& module, const std::string& name = "weight",
                             bool leave_parametrized = true);

/// Weight normalisation (Salimans and Kingma 2016): the parameter is g v / ||v||. Its originals are
/// original0, the norms g, and original1, the directions v. There is one norm per index of dimension `dim`,
/// computed over all other dimensions; without a dim, there is one norm of the whole tensor. Returns the
/// module.
Module& weight_norm(Module& module, const std::string& name = "weight", std::optional<int> dim = 0);

struct SpectralNormOptions {
  int n_power_iterations = 1;
  double eps = 1e-12;           ///< a norm counts as at least eps
  std::optional<int> dim = {};  ///< the rows of the matrix; absent: 1 for a ConvTranspose layer, else 0
};
/// Spectral normalisation (Miyato et al. 2018): the parameter is divided by its largest singular value, as a
/// matrix whose rows are dimension `dim`. In training, each call improves the estimates of the singular
/// vectors, the buffers _u and _v, by power iterations. They begin as random vectors, improved by 15
/// iterations. A 1-d parameter is divided by its norm. Returns the module.
Module& spectral_norm(Module& module, const std::string& name = "weight",
                      const SpectralNormOptions& options = {});

}  // namespace tapestry::nn
