#pragma once
// All parameters of a model as one vector, for methods that treat them so: conjugate gradients, natural
// gradients, evolution strategies.
#include <vector>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// Concatenates the elements of all parameters, each in row-major order, to a 1-d tensor. The result is
/// recorded on the tape. Throws ValueError if there are no parameters or one is sharded, and DeviceError if
/// they are on several devices. Within FullyShard::unshard(), sharded parameters have all elements.
Tensor parameters_to_vector(const std::vector<Parameter>& params);

/// Copies consecutive elements of `vector` to the parameters, in all replicas. The copies are not recorded.
/// Throws ValueError, and changes nothing, if `vector` is not 1-d or has another number of elements than the
/// parameters together, or if a parameter is sharded.
void vector_to_parameters(const Tensor& vector, const std::vector<Parameter>& params);

}  // namespace tapestry::nn
