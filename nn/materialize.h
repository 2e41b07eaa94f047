#pragma once
// Models without memory: construction on the meta device, and memory for one module or parameter at a time.
//
//   const auto build = [] {
//     const DeviceGuard guard("meta");
//     return std::make_unique<Net>(options);         // shapes and dtypes; takes no memory, whatever the size
//   };
//   const std::unique_ptr<Net> net = build();
//   std::cout << net->summary({1, 2048}, DType::i64);
//
//   nn::materialize(*net, "cuda:0");                  // the initial values that construction there would
//   give
//   // or
//   net->to_empty("cuda:0");                          // uninitialised memory, to be filled by hand
//   // or
//   nn::load_model("weights.safetensors", *net);      // the tensors of a file
//
// Names follow PyTorch's meta device and torchdistX's deferred_init.
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/deferred.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Gives the parameters and buffers of `module` and its descendants that are on the meta device memory on
/// `device`, and their initial values: bit for bit those that construction on the device would have given
/// them (tapestry::materialize), because every random fill reserved its numbers when the module was built.
/// The slots stay the same, so optimizers remain valid, and parameters keep requires_grad; hooks on the old
/// tensors are lost. Tensors on other devices stay there. Call it for one submodule at a time if the whole
/// module does not fit. Throws one ValueError that lists every parameter whose values cannot be computed, and
/// then changes nothing. Throws ValueError if the module has several replicas.
void materialize(Module& module, Device device);

/// Names for messages, and slots.
using NamedSlots = std::vector<std::pair<std::string, TensorSlot>>;
/// Does the same for these slots, which fully_shard() passes one unit at a time. Slots whose tensors are not
/// on the meta device, computed slots and handles without a slot are left alone.
void materialize(const NamedSlots& named, Device device);

/// True if a parameter or buffer of the module or a descendant is on the meta device.
bool has_meta_tensors(const Module& module);

}  // namespace tapestry::nn
